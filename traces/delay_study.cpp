#include "traces/delay_study.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace pipelag {
namespace {

constexpr const char* kBaselineProfile = "0";
constexpr const char* kNoCorrection = "none";

/// The runs of one mode at one learning rate.
struct Cell {
  CurveMode mode;
  double learning_rate = 0;
  std::vector<const LossCurve*> runs;

  bool sound() const {
    return std::none_of(runs.begin(), runs.end(), [](const auto* run) { return run->diverged; });
  }
};

bool HasValidation(const Cell& cell) {
  return std::all_of(cell.runs.begin(), cell.runs.end(),
                     [](const auto* run) { return run->validation_loss.has_value(); });
}

std::vector<double> FinalLosses(const Cell& cell, bool validation) {
  std::vector<double> losses;
  for (const LossCurve* run : cell.runs) {
    losses.push_back(validation ? *run->validation_loss : SmoothCurve(run->losses).Final());
  }
  return losses;
}

double MeanLoss(const Cell& cell) { return SpreadOf(FinalLosses(cell, HasValidation(cell))).mean; }

Spread GapOf(const Cell& cell, const Cell& baseline) {
  const bool validation = HasValidation(cell) && HasValidation(baseline);
  const std::vector<double> own = FinalLosses(cell, validation);
  const std::vector<double> other = FinalLosses(baseline, validation);
  std::vector<double> differences;
  for (size_t i = 0; i < own.size(); ++i) {
    for (size_t k = 0; k < other.size(); ++k) {
      if (cell.runs[i]->seed == baseline.runs[k]->seed) differences.push_back(own[i] - other[k]);
    }
  }
  if (differences.size() == own.size() && own.size() == other.size()) return SpreadOf(differences);
  const Spread mine = SpreadOf(own);
  const Spread theirs = SpreadOf(other);
  return {mine.mean - theirs.mean, mine.least - theirs.greatest, mine.greatest - theirs.least,
          std::hypot(mine.standard_error, theirs.standard_error)};
}

StudyRow Compare(const Cell& cell, const Cell* baseline, const Cell* uncorrected) {
  StudyRow row;
  row.mode = cell.mode;
  row.learning_rate = cell.learning_rate;
  row.runs = static_cast<int>(cell.runs.size());
  row.diverged = static_cast<int>(std::count_if(cell.runs.begin(), cell.runs.end(),
                                                [](const auto* run) { return run->diverged; }));
  if (row.diverged > 0) return row;
  row.train = SpreadOf(FinalLosses(cell, false));
  if (HasValidation(cell)) row.validation = SpreadOf(FinalLosses(cell, true));
  if (baseline == nullptr || baseline == &cell || !baseline->sound()) return row;
  row.gap = GapOf(cell, *baseline);
  if (uncorrected != nullptr && uncorrected != &cell && uncorrected->sound()) {
    const double open = GapOf(*uncorrected, *baseline).mean;
    if (open > 0) row.closed_share = (open - row.gap->mean) / open;
  }
  const SmoothCurve own(cell.runs);
  const SmoothCurve synchronous(baseline->runs);
  const double target = synchronous.Final();
  row.iso_loss = IsoLoss{};
  const double base = *synchronous.StepsTo(target);
  if (const auto steps = own.StepsTo(target)) {
    const auto tokens = static_cast<double>(cell.runs[0]->tokens_per_step);
    row.iso_loss = {true, (*steps - base) * tokens, *steps / base - 1};
  }
  if (const auto earlier = synchronous.StepsTo(own.Final())) {
    row.lag_share = *own.StepsTo(own.Final()) / *earlier - 1;
  }
  return row;
}

std::vector<Cell> CellsOf(const std::vector<LossCurve>& curves) {
  std::vector<Cell> cells;
  for (const LossCurve& curve : curves) {
    auto cell = std::find_if(cells.begin(), cells.end(), [&](const Cell& known) {
      return known.mode == curve.mode && known.learning_rate == curve.learning_rate;
    });
    if (cell == cells.end()) {
      cells.push_back({curve.mode, curve.learning_rate, {}});
      cell = cells.end() - 1;
    }
    cell->runs.push_back(&curve);
  }
  return cells;
}

const Cell* Find(const std::vector<const Cell*>& cells, const CurveMode& mode) {
  for (const Cell* cell : cells) {
    if (cell->mode == mode) return cell;
  }
  return nullptr;
}

StudyRow CompareAmong(const std::vector<const Cell*>& cells, const Cell& cell) {
  const CurveMode& mode = cell.mode;
  return Compare(cell, Find(cells, {mode.optimizer, kBaselineProfile, kNoCorrection}),
                 Find(cells, {mode.optimizer, mode.profile, kNoCorrection}));
}

/// One cell per mode.
std::vector<const Cell*> BestOf(const std::vector<Cell>& cells) {
  std::vector<const Cell*> best;
  for (const Cell& cell : cells) {
    const auto known = std::find_if(best.begin(), best.end(),
                                    [&](const Cell* other) { return other->mode == cell.mode; });
    if (known == best.end()) {
      best.push_back(&cell);
    } else if (cell.sound() && (!(*known)->sound() || MeanLoss(cell) < MeanLoss(**known))) {
      *known = &cell;
    }
  }
  return best;
}

std::string Figures(const std::optional<Spread>& spread) {
  if (!spread) return ",,,";
  return fmt::format("{:.6f},{:.6f},{:.6f},{:.6f}", spread->mean, spread->least, spread->greatest,
                     spread->standard_error);
}

std::string Figure(const std::optional<double>& value) {
  return value ? fmt::format("{:.6f}", *value) : "";
}

}  // namespace

Spread SpreadOf(const std::vector<double>& values) {
  Spread spread;
  const auto count = static_cast<double>(values.size());
  for (const double value : values) spread.mean += value / count;
  const auto [least, greatest] = std::minmax_element(values.begin(), values.end());
  spread.least = *least;
  spread.greatest = *greatest;
  if (values.size() < 2) return spread;
  double squares = 0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  spread.standard_error = std::sqrt(squares / (count - 1) / count);
  return spread;
}

StudyTable TabulateStudy(const std::vector<LossCurve>& curves) {
  const std::vector<Cell> cells = CellsOf(curves);
  StudyTable table;
  for (const Cell& cell : cells) {
    std::vector<const Cell*> same_rate;
    for (const Cell& other : cells) {
      if (other.learning_rate == cell.learning_rate) same_rate.push_back(&other);
    }
    table.rows.push_back(CompareAmong(same_rate, cell));
  }
  const std::vector<const Cell*> best = BestOf(cells);
  for (const Cell* cell : best) table.best.push_back(CompareAmong(best, *cell));
  return table;
}

std::string StudyTableCsv(const StudyTable& table) {
  std::string csv =
      "compared_at,optimizer,profile,correction,learning_rate,runs,diverged,"
      "train_mean,train_min,train_max,train_standard_error,"
      "validation_mean,validation_min,validation_max,validation_standard_error,"
      "gap_mean,gap_min,gap_max,gap_standard_error,closed_share,"
      "reached_synchronous_loss,extra_tokens,extra_share,lag_share\n";
  const auto add = [&](const char* at, const StudyRow& row) {
    csv += fmt::format("{},{},{},{},{},{},{},{},{},{},{},", at, row.mode.optimizer,
                       row.mode.profile, row.mode.correction, row.learning_rate, row.runs,
                       row.diverged, Figures(row.train), Figures(row.validation), Figures(row.gap),
                       Figure(row.closed_share));
    if (!row.iso_loss) {
      csv += ",,";
    } else if (row.iso_loss->reached) {
      csv +=
          fmt::format("yes,{:.0f},{:.6f}", row.iso_loss->extra_tokens, row.iso_loss->extra_share);
    } else {
      csv += "no,,";
    }
    csv += fmt::format(",{}\n", Figure(row.lag_share));
  };
  for (const StudyRow& row : table.rows) add("same rate", row);
  for (const StudyRow& row : table.best) add("best rate", row);
  return csv;
}

}  // namespace pipelag
