// What `run --predict-from` holds against what it measured.
#include "tools/prediction.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/schedule/one_rank.h"
#include "runtime/runnable.h"
#include "sim/simulator.h"
#include "traces/calibrate.h"
#include "traces/side_by_side.h"

namespace pipelag {
namespace {

bool AnyOf(const Schedule& schedule, ActionKind kind) {
  return std::any_of(schedule.body.begin(), schedule.body.end(), [&](const auto& body) {
    return std::any_of(body.begin(), body.end(), [&](const Action& a) { return a.kind == kind; });
  });
}

Prediction::Form FormOf(const Schedule& schedule) {
  return {schedule.stages, AnyOf(schedule, ActionKind::kBackwardInput)};
}

/// By group of `other`: what its reduction of gradients took, in the same part of the network, in
/// a run of `source`. Whoever reduces nothing there takes no time here.
std::vector<Nanoseconds> ReductionsFor(const Schedule& other, const Schedule& source,
                                       const Trace& trace, int64_t warm_up) {
  std::vector<Nanoseconds> times(other.groups.size());
  if (other.stages != source.stages) return times;
  const std::vector<Nanoseconds> measured = ReductionTimes(trace, source.groups.size(), warm_up);
  std::vector<Nanoseconds> of_slice(static_cast<size_t>(source.stages));
  const auto slice = [](const Schedule& schedule, const CollectiveGroup& group) {
    return static_cast<size_t>(schedule.SliceOf(group.stages.front()));
  };
  for (size_t g = 0; g < measured.size(); ++g) {
    if (!MovesGradients(source.groups[g])) continue;
    of_slice[slice(source, source.groups[g])] = measured[g];
  }
  for (size_t g = 0; g < times.size(); ++g) {
    if (MovesGradients(other.groups[g])) times[g] = of_slice[slice(other, other.groups[g])];
  }
  return times;
}

}  // namespace

Prediction::Prediction(const Arguments& arguments, const std::vector<Series>& all, bool processes) {
  const std::string name = arguments.Text("predict-from");
  const std::string place = arguments.PlaceOf("predict-from");
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const Series& series) { return series.name == name; });
  if (found == all.end()) {
    std::vector<std::string> names;
    for (const Series& series : all) names.push_back(series.name);
    throw Error(fmt::format("{}: '{}' is none of the schedules run: {}", place, name,
                            fmt::join(names, ", ")));
  }
  source_ = static_cast<size_t>(found - all.begin());
  const Schedule& source = found->program->schedule();
  source_form_ = FormOf(source);
  microbatches_ = source.microbatches / source.replicas;
  for (const Series& series : all) {
    const Form form = FormOf(series.program->schedule());
    // Who splits some of its backwards may have whole ones too: they are the sum of their halves.
    if (form == source_form_ || (form.first == source_form_.first && source_form_.second)) continue;
    if (processes) {
      throw Error(fmt::format(
          "{}: {} has {} stages{}, but {} has {}{}, and with a process for each rank no stage can "
          "be measured alone",
          place, source.name, source_form_.first, source_form_.second ? " and split backwards" : "",
          series.name, form.first, form.second ? " and split backwards" : ""));
    }
    if (std::find(alone_.begin(), alone_.end(), form) == alone_.end()) alone_.push_back(form);
  }
  if (!alone_.empty()) alone_.push_back(source_form_);
}

void Prediction::MeasureAlone(const Form& form, int64_t steps, const TrainingOptions& options,
                              const Corpus& corpus, const Gpus& gpus) {
  const Program program(OnOneRank(form.first, microbatches_, form.second), steps);
  TrainingOptions own = options;
  own.clip_norm.reset();  // what it costs shows in the run predicted from; a tied head likewise
  own.shape.tied = false;
  own.validation_microbatches = 1;
  traces_[form].push_back(TrainInProcess(program, own, corpus, gpus).trace);
}

Costs Prediction::Predict(std::vector<Series>& all, int64_t warm_up) const {
  // On the repetition that is shown: what slowed another one down is none of its business.
  const Trace& trace = all[source_].typical().trace;
  const Schedule& calibrated = all[source_].program->schedule();
  const Costs source = Calibrate({OfSlices(trace, calibrated.stages)}, {.warm_up = warm_up});
  std::map<Form, Costs> alone;
  for (const auto& [form, traces] : traces_) {
    alone[form] = Calibrate(traces, {.warm_up = warm_up});
  }
  for (Series& series : all) {
    const auto measured = alone.find(FormOf(series.program->schedule()));
    const Costs costs = measured == alone.end() || measured->first == source_form_
                            ? source
                            : SideBySide(measured->second, alone.at(source_form_), source);
    const Program executed = Unpaired(*series.program);
    const ActionTimes times(executed, costs,
                            ReductionsFor(executed.schedule(), calibrated, trace, warm_up));
    series.simulated = Simulate(executed, times, {.spans = true});
    series.simulated->trace.tokens_per_step = series.typical().trace.tokens_per_step;
  }
  return source;
}

}  // namespace pipelag
