#include "runtime/cpu/threads.h"

#include <mutex>
#include <thread>

#include "models/schedule/slots.h"
#include "runtime/cpu/cpu_compute.h"
#include "runtime/cpu/local_transport.h"
#include "runtime/cpu/outcome.h"
#include "runtime/executor.h"
#include "runtime/overdue.h"

namespace pipelag {
namespace {

class CpuBackends : public Backends {
 public:
  CpuBackends(const Program& program, const TrainingOptions& options, const Corpus& corpus,
              RunControl& control)
      : microbatches_(program.schedule().microbatches),
        options_(options),
        corpus_(corpus),
        control_(control),
        hub_(program, control) {}

  std::unique_ptr<TrainingCompute> MakeCompute(const RankPlan& plan, OnUpdate on_update) override {
    return std::make_unique<CpuCompute>(plan, options_, microbatches_, corpus_, control_,
                                        std::move(on_update));
  }
  std::unique_ptr<Transport> MakeTransport(int rank) override { return hub_.End(rank); }

 private:
  int microbatches_;
  const TrainingOptions& options_;
  const Corpus& corpus_;
  RunControl& control_;
  LocalHub hub_;
};

}  // namespace

TrainingResult TrainOnThreads(const Program& program, const TrainingOptions& options,
                              const Corpus& corpus, const Interposer& interpose) {
  const OpenBackends open = [](const Program& of, const TrainingOptions& with, const Corpus& from,
                               RunControl& control) {
    return std::make_unique<CpuBackends>(of, with, from, control);
  };
  return TrainOnThreads(program, options, corpus, open, interpose);
}

TrainingResult TrainOnThreads(const Program& program, const TrainingOptions& options,
                              const Corpus& corpus, const OpenBackends& open,
                              const Interposer& interpose) {
  const Schedule& schedule = program.schedule();
  CheckFits(program, options);
  RunControl control(options.deadline);
  const OverdueWatch overdue(control, options.end_overdue);
  if (schedule.ranks <= static_cast<int>(std::thread::hardware_concurrency())) {
    control.set_patience(std::chrono::seconds(1));
  }
  const std::unique_ptr<Backends> of_run = open(program, options, corpus, control);
  // One watch for all ranks that have losses or updates to tell of: they take turns.
  StepWatch watch(options, schedule.microbatches);
  std::mutex watching;
  const std::vector<int> slots = NeverDelayingSlots(program);
  std::vector<RankPlan> plans;
  std::vector<std::unique_ptr<TrainingCompute>> computes;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<RankBackend> backends;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    plans.push_back(PlanRank(program, rank, slots, options.first_step()));
    computes.push_back(of_run->MakeCompute(
        plans.back(), [&](int64_t step, float rate, std::optional<double> norm) {
          const std::lock_guard lock(watching);
          watch.AddUpdate(step, rate, norm);
        }));
    transports.push_back(of_run->MakeTransport(rank));
    const RankBackend inner{computes.back().get(), transports.back().get()};
    backends.push_back(interpose ? interpose(rank, inner, control) : inner);
  }

  WorkerOptions worker = WorkerOptionsOf(options);
  worker.message_bytes = computes.front()->message_bytes();
  std::vector<double> losses(static_cast<size_t>(program.total_microbatches()));
  worker.watch = [&](int64_t microbatch, double loss) {
    const std::lock_guard lock(watching);
    watch.AddLoss(microbatch, loss);
  };
  std::vector<WorkerResult> results;
  try {
    RunOnThreads(program, plans, worker, backends, control, losses, results);
  } catch (const Diverged& diverged) {
    std::vector<std::string> not_finite(static_cast<size_t>(schedule.stages));
    std::vector<std::optional<Breaking>> seen;
    for (size_t rank = 0; rank < plans.size(); ++rank) {
      seen.push_back(computes[rank]->FirstBreaking());
      for (size_t i = 0; i < plans[rank].stages.size(); ++i) {
        std::string& tensor = not_finite[static_cast<size_t>(plans[rank].stages[i].slice)];
        if (tensor.empty()) tensor = computes[rank]->NotFinite(i);
      }
    }
    return DivergedOutcome(program, options, results, std::move(losses), diverged, seen,
                           not_finite);
  }
  AlignReceives(results);
  std::vector<StageWeights> placed(static_cast<size_t>(schedule.placed_stages()));
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    for (size_t i = 0; i < plans[rank].stages.size(); ++i) {
      placed[static_cast<size_t>(plans[rank].stages[i].stage)] = {
          &computes[rank]->layout(i),
          computes[rank]->FinalWeights(i, results[rank].newest_weights[i])};
    }
  }
  return Outcome(program, options, corpus, plans, results, std::move(placed), losses);
}

}  // namespace pipelag
