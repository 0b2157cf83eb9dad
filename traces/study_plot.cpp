// The plot of a study: which curves stand in which panel.
#include <fmt/format.h>

#include <algorithm>

#include "models/error.h"
#include "traces/delay_study.h"
#include "traces/svg_plot.h"

namespace pipelag {
namespace {

PlotLine LineOf(const std::vector<const LossCurve*>& runs, const std::string& label) {
  PlotLine line{label, {}};
  const SmoothCurve mean(runs);
  std::vector<SmoothCurve> own;
  for (const LossCurve* run : runs) own.emplace_back(run->losses);
  for (size_t i = 0; i < mean.values().size(); ++i) {
    const double place = mean.first_place() + static_cast<double>(i);
    const double value = mean.values()[i];
    PlotPoint point{place * static_cast<double>(runs[0]->tokens_per_step), value, value, value};
    for (const SmoothCurve& curve : own) {
      point.least = std::min(point.least, curve.values()[i]);
      point.greatest = std::max(point.greatest, curve.values()[i]);
    }
    line.points.push_back(point);
  }
  return line;
}

std::string LabelOf(const CurveMode& mode) {
  const std::string delay = fmt::format("delay {}", mode.profile);
  return mode.correction == "none" ? delay : fmt::format("{}, {}", delay, mode.correction);
}

}  // namespace

std::string StudyPlot(const std::vector<LossCurve>& curves, const StudyTable& table) {
  std::vector<PlotPanel> panels;
  for (const StudyRow& row : table.best) {
    if (row.diverged > 0) continue;
    std::vector<const LossCurve*> runs;
    for (const LossCurve& curve : curves) {
      if (curve.mode == row.mode && curve.learning_rate == row.learning_rate) {
        runs.push_back(&curve);
      }
    }
    if (panels.empty() || panels.back().title != row.mode.optimizer) {
      panels.push_back({row.mode.optimizer, {}});
    }
    panels.back().lines.push_back(LineOf(runs, LabelOf(row.mode)));
  }
  if (panels.empty()) throw Error("there is nothing to plot: every run diverged");
  return SvgPlot(panels, "tokens", "training loss (nats per byte)");
}

}  // namespace pipelag
