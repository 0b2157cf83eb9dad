// What delay costs, read off the loss curves of a study: gaps to synchronous training, the share of
// them that a correction closes, and the tokens that would make up for them. Knows nothing of how
// the curves came about or how the figures are shown.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "traces/loss_curves.h"

namespace pipelag {

struct Spread {
  double mean = 0;
  double least = 0;
  double greatest = 0;
  double standard_error = 0;  ///< of the mean; 0 with one value, which has none
};
Spread SpreadOf(const std::vector<double>& values);

/// Tokens to the final training loss of the synchronous run, by smoothed mean curves.
struct IsoLoss {
  bool reached = false;
  double extra_tokens = 0;  ///< beyond the synchronous run's; means nothing if not reached
  double extra_share = 0;   ///< of the synchronous run's tokens to there; likewise
};

/// One mode at one learning rate, over its seeds, held against synchronous training and against the
/// same delay without a correction.
struct StudyRow {
  CurveMode mode;
  double learning_rate = 0;
  int runs = 0;
  int diverged = 0;                  ///< of them; if any did, nothing below has a value
  std::optional<Spread> train;       ///< final training loss
  std::optional<Spread> validation;  ///< none where no validation loss was taken
  /// Loss over the synchronous one, seed by seed where both have the same seeds: of validation,
  /// where there is one, else of training.
  std::optional<Spread> gap;
  /// Of the gap without correction; none without a correction or without a gap to close.
  std::optional<double> closed_share;
  std::optional<IsoLoss> iso_loss;
  /// How many more tokens than synchronous training it took to its own final training loss, as a
  /// share.
  std::optional<double> lag_share;
};

struct StudyTable {
  std::vector<StudyRow> rows;  ///< by optimizer, profile, correction, rate, as they first occur
  /// Each mode at its own best learning rate, that is with the least validation loss (of those with
  /// no divergence), held against the others at theirs; at its first rate if all diverged.
  std::vector<StudyRow> best;
};

/// The synchronous baseline is profile "0" without correction, which may be missing.
StudyTable TabulateStudy(const std::vector<LossCurve>& curves);

/// Both parts of the table, a line per row; empty cells for what has no value.
std::string StudyTableCsv(const StudyTable& table);

/// A panel per optimizer: smoothed mean training loss of every mode at its best learning rate, with
/// the least and greatest over seeds behind it. Diverged runs are left out.
std::string StudyPlot(const std::vector<LossCurve>& curves, const StudyTable& table);

}  // namespace pipelag
