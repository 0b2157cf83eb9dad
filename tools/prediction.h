// What `run --predict-from` holds against what it measured: every schedule of a series simulated on
// the times of one of them. Must not know how a series is run or shown.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "runtime/training.h"
#include "tools/arguments.h"
#include "tools/train_once.h"
#include "tools/trained_series.h"

namespace pipelag {

/// A schedule with the stages and the form of backward of the one that it is predicted from is
/// predicted from its times alone. For any other its stages are measured by themselves, one after
/// the other on one rank, as are those predicted from: how much slower these are when they run side
/// by side, the others are too.
class Prediction {
 public:
  /// What has to be measured alone: number of stages, whether backwards are split.
  using Form = std::pair<int, bool>;

  /// Throws Error if --predict-from names none of the series or one that tells nothing; or, with
  /// `processes`, one that tells too little, since nothing can be measured alone there.
  Prediction(const Arguments& arguments, const std::vector<Series>& all, bool processes);

  const std::vector<Form>& alone() const { return alone_; }
  /// One more run of stages alone.
  void MeasureAlone(const Form& form, int64_t steps, const TrainingOptions& options,
                    const Corpus& corpus, const Gpus& gpus);
  /// Simulates every series, and returns the times of the one predicted from.
  Costs Predict(std::vector<Series>& all, int64_t warm_up) const;

 private:
  size_t source_ = 0;
  Form source_form_;
  int microbatches_ = 1;
  std::vector<Form> alone_;
  std::map<Form, std::vector<Trace>> traces_;
};

}  // namespace pipelag
