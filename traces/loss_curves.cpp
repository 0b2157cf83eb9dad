#include "traces/loss_curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <sstream>
#include <string_view>

#include "models/error.h"
#include "models/units.h"

namespace pipelag {
namespace {

constexpr size_t kWindowsPerRun = 20;

enum Column {
  kOptimizer,
  kProfile,
  kCorrection,
  kLearningRate,
  kSeed,
  kStep,
  kTokens,
  kLoss,
  kDiverged
};
constexpr std::array<std::string_view, 9> kColumns = {"optimizer",     "profile", "correction",
                                                      "learning_rate", "seed",    "step",
                                                      "tokens",        "loss",    "diverged"};

std::vector<std::string> Cells(const std::string& line) {
  std::vector<std::string> cells;
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find(',', begin), line.size());
    cells.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return cells;
}

/// Where each column stands.
std::array<size_t, kColumns.size()> PlacesOf(const std::vector<std::string>& header,
                                             const std::string& source) {
  std::array<size_t, kColumns.size()> places{};
  for (size_t i = 0; i < kColumns.size(); ++i) {
    const auto found = std::find(header.begin(), header.end(), kColumns[i]);
    if (found == header.end()) {
      throw Error(fmt::format("{}: the header has no column '{}'", source, kColumns[i]));
    }
    places[i] = static_cast<size_t>(found - header.begin());
  }
  return places;
}

}  // namespace

SmoothCurve::SmoothCurve(const std::vector<double>& losses) {
  CHECK(!losses.empty());
  const size_t window = std::max<size_t>(1, losses.size() / kWindowsPerRun);
  first_place_ = static_cast<double>(window + 1) / 2;
  for (size_t end = window; end <= losses.size(); ++end) {
    double sum = 0;
    for (size_t i = end - window; i < end; ++i) sum += losses[i];
    values_.push_back(sum / static_cast<double>(window));
  }
}

SmoothCurve::SmoothCurve(const std::vector<const LossCurve*>& runs) {
  CHECK(!runs.empty());
  size_t steps = runs[0]->losses.size();
  for (const LossCurve* run : runs) steps = std::min(steps, run->losses.size());
  std::vector<double> mean(steps);
  for (size_t i = 0; i < steps; ++i) {
    for (const LossCurve* run : runs) mean[i] += run->losses[i];
    mean[i] /= static_cast<double>(runs.size());
  }
  *this = SmoothCurve(mean);
}

std::optional<double> SmoothCurve::StepsTo(double loss) const {
  const auto below =
      std::find_if(values_.begin(), values_.end(), [&](double value) { return value <= loss; });
  if (below == values_.end()) return std::nullopt;
  const double place = first_place_ + static_cast<double>(below - values_.begin());
  if (below == values_.begin()) return place;
  const double before = *(below - 1);
  return place - (loss - *below) / (before - *below);
}

double SmoothCurve::At(double place) const {
  const double inside =
      std::clamp(place - first_place_, 0.0, static_cast<double>(values_.size() - 1));
  const auto left = static_cast<size_t>(inside);
  if (left + 1 >= values_.size()) return values_.back();
  const double share = inside - static_cast<double>(left);
  return values_[left] + share * (values_[left + 1] - values_[left]);
}

std::string CurvesCsv(const std::vector<LossCurve>& curves) {
  std::string csv = fmt::format("{}\n", fmt::join(kColumns, ","));
  for (const LossCurve& curve : curves) {
    for (size_t step = 0; step < curve.losses.size(); ++step) {
      csv += fmt::format("{},{},{},{},{},{},{},{:.6f},{}\n", curve.mode.optimizer,
                         curve.mode.profile, curve.mode.correction, curve.learning_rate, curve.seed,
                         step, static_cast<int64_t>(step + 1) * curve.tokens_per_step,
                         curve.losses[step], curve.diverged ? 1 : 0);
    }
  }
  return csv;
}

std::vector<LossCurve> ParseCurvesCsv(const std::string& csv, const std::string& source) {
  std::istringstream lines(csv);
  std::string line;
  if (!std::getline(lines, line)) throw Error(fmt::format("{}: is empty", source));
  const auto places = PlacesOf(Cells(line), source);
  std::vector<LossCurve> curves;
  std::map<std::tuple<std::string, std::string, std::string, std::string, std::string>, size_t>
      known;
  for (int64_t number = 2; std::getline(lines, line); ++number) {
    const std::vector<std::string> cells = Cells(line);
    const auto fail = [&](const std::string& what) {
      throw Error(fmt::format("{}: line {}: {}", source, number, what));
    };
    if (cells.size() <= *std::max_element(places.begin(), places.end())) fail("a cell is missing");
    const auto cell = [&](Column column) { return cells[places[column]]; };
    try {
      const auto [entry, is_new] = known.try_emplace(
          {cell(kOptimizer), cell(kProfile), cell(kCorrection), cell(kLearningRate), cell(kSeed)},
          curves.size());
      if (is_new) {
        curves.push_back({{cell(kOptimizer), cell(kProfile), cell(kCorrection)},
                          ParseDecimal(cell(kLearningRate)),
                          static_cast<uint64_t>(ParseInteger(cell(kSeed))),
                          ParseInteger(cell(kTokens)),
                          {},
                          cell(kDiverged) == "1",
                          std::nullopt});
      }
      LossCurve& curve = curves[entry->second];
      if (ParseInteger(cell(kStep)) != static_cast<int64_t>(curve.losses.size())) {
        fail(fmt::format("step {} stands where step {} of its run is due", cell(kStep),
                         curve.losses.size()));
      }
      // The last batch of a run that diverged may have no number for a loss.
      const std::string loss = cell(kLoss);
      const bool number_less = curve.diverged && (loss.ends_with("nan") || loss.ends_with("inf"));
      curve.losses.push_back(number_less ? std::nan("") : ParseDecimal(loss));
    } catch (const Error& error) {
      const std::string said = error.what();
      if (said.starts_with(source)) throw;
      fail(said);
    }
  }
  if (curves.empty()) throw Error(fmt::format("{}: has no curves", source));
  return curves;
}

}  // namespace pipelag
