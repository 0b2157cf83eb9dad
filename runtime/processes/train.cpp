#include "runtime/processes/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "models/schedule/replicate.h"
#include "models/schedule/slots.h"
#include "models/schedule/text.h"
#include "runtime/checkpoint/facts.h"
#include "runtime/compute_around.h"
#include "runtime/cpu/cpu_compute.h"
#include "runtime/cpu/outcome.h"
#include "runtime/executor.h"
#include "runtime/overdue.h"
#include "runtime/past_event.h"
#include "runtime/processes/clocks.h"
#include "runtime/processes/loss_messages.h"
#include "runtime/processes/notes.h"
#include "runtime/processes/process_transport.h"
#include "runtime/processes/rank_run.h"
#include "runtime/termination.h"

namespace pipelag {
namespace {

/// Tells the others why this rank stops, as soon as it does: what it is inside of may take minutes
/// more.
std::jthread WatchStop(const RunControl& control, Notes& notes) {
  return std::jthread([&](const std::stop_token& ended) {
    if (control.WaitUntilStopped(ended)) notes.TellToStop(control.error());
  });
}

/// Computes until the loss is known to have diverged, and then nothing any more.
class UntilDiverged : public ComputeAround {
 public:
  UntilDiverged(Compute& inner, Notes& notes, const RunControl& control)
      : ComputeAround(inner), notes_(notes), control_(control) {}

  EventPtr Start(const ComputeTask& task, std::span<const EventPtr> after) override {
    if (notes_.diverged() == Notes::kNever) {
      try {
        return ComputeAround::Start(task, after);
      } catch (const Diverged& diverged) {
        notes_.TellDiverged(diverged.step, diverged.where);
      }
    }
    for (const EventPtr& event : after) event->Wait();
    const Nanoseconds now = control_.Now();
    ended_ = std::min(ended_, now);
    return std::make_shared<PastEvent>(Interval{now, now});
  }

  /// When the first task was left out.
  Nanoseconds ended() const { return ended_; }

 private:
  Notes& notes_;
  const RunControl& control_;
  Nanoseconds ended_ = Nanoseconds::max();
};

/// A CPU, over the link's own messages.
class CpuProcess : public Backends {
 public:
  CpuProcess(const Program& program, const TrainingOptions& options, const Corpus& corpus,
             const RunControl& control)
      : microbatches_(program.schedule().microbatches),
        options_(options),
        corpus_(corpus),
        control_(control) {}

  std::unique_ptr<TrainingCompute> MakeCompute(const RankPlan& plan, OnUpdate on_update) override {
    return std::make_unique<CpuCompute>(plan, options_, microbatches_, corpus_, control_,
                                        std::move(on_update));
  }
  std::unique_ptr<Transport> MakeTransport(int) override { return nullptr; }

 private:
  int microbatches_;
  const TrainingOptions& options_;
  const Corpus& corpus_;
  const RunControl& control_;
};

class ProcessRun {
 public:
  ProcessRun(const Program& program, const TrainingOptions& options, const Corpus& corpus,
             Wire& wire, RunControl& control)
      : program_(program),
        options_(options),
        corpus_(corpus),
        control_(control),
        link_(wire, control, [&program](int rank) { return RankName(program.schedule(), rank); }),
        transport_(program, link_),
        notes_(link_, ProcessTransport::kFreeTag),
        rank_(wire.rank()) {
    const std::vector<int> slots = NeverDelayingSlots(program);
    // Rank 0 puts together what all ranks came to.
    plans_.resize(static_cast<size_t>(wire.size()));
    for (int rank = 0; rank < wire.size(); ++rank) {
      if (rank_ != 0 && rank != rank_) continue;
      plans_[static_cast<size_t>(rank)] = PlanRank(program, rank, slots, options.first_step());
    }
  }
  ~ProcessRun() { link_.Close(); }
  ProcessRun(const ProcessRun&) = delete;
  ProcessRun& operator=(const ProcessRun&) = delete;

  std::optional<ProcessesResult> Run(const OpenProcessBackends& open, const Interposer& interpose) {
    const OnTermination told([this](const std::string& signal) { StopFor(signal); });
    const std::jthread stop = WatchStop(control_, notes_);
    try {
      CompareJobs(link_, ProcessTransport::kFreeTag + 1, Job());
      const std::vector<ClockOffset> clocks = CompareClocks(link_, ProcessTransport::kFreeTag + 1);
      backends_ = open(program_, options_, corpus_, link_, ProcessTransport::kFreeTag + 4);
      RankRun own = Train(interpose);
      notes_.FinishTogether();
      if (rank_ != 0) {
        SendToFirst(link_, ProcessTransport::kFreeTag + 2, own);
        return std::nullopt;
      }
      return Gather(clocks, std::move(own));
    } catch (...) {
      control_.Stop(std::current_exception());
      control_.RethrowError();  // the first, which any thread of this rank may have found
      throw;
    }
  }

 private:
  /// Launchers end the other ranks so when one has died: what this one was doing says why.
  void StopFor(const std::string& signal) {
    const std::string place = link_.Place();
    const std::string waiting = link_.Waiting();
    control_.Stop(std::make_exception_ptr(
        Error(fmt::format("{}: told to end ({}){}{}", place.empty() ? link_.NameOf(rank_) : place,
                          signal, waiting.empty() ? "" : " while ", waiting))));
  }

  /// What all ranks must agree on.
  std::string Job() const {
    const Schedule& schedule = program_.schedule();
    std::string job = fmt::format("{} {} {} {} {}", schedule.name, schedule.ranks,
                                  schedule.microbatches, program_.steps(), options_.first_step());
    for (const auto& body : schedule.body) {
      for (const Action& action : body) job += ' ' + ActionText(schedule, action);
      job += '\n';
    }
    return job + RunFacts(options_, PlanOf(program_), corpus_).dump();
  }

  RankRun Train(const Interposer& interpose) {
    const RankPlan& plan = plans_[static_cast<size_t>(rank_)];
    StepWatch watch(options_, program_.schedule().microbatches);
    compute_ =
        backends_->MakeCompute(plan, [&](int64_t step, float rate, std::optional<double> norm) {
          watch.AddUpdate(step, rate, norm);
        });
    own_transport_ = backends_->MakeTransport(rank_);
    RankBackend backend{compute_.get(), &transport_};
    if (own_transport_) {
      backend.transport = own_transport_.get();
    } else {
      transport_.Reserve(plan, *compute_);
    }
    if (interpose) backend = interpose(rank_, backend, control_);
    UntilDiverged until(*backend.compute, notes_, control_);
    losses_.resize(static_cast<size_t>(program_.total_microbatches()));
    WorkerOptions worker_options = WorkerOptionsOf(options_);
    worker_options.message_bytes = compute_->message_bytes();
    told_losses_ =
        std::make_unique<LossMessages>(program_, link_, ProcessTransport::kFreeTag + 3, notes_,
                                       [&](int64_t microbatch, double loss) {
                                         if (notes_.diverged() != Notes::kNever) return;
                                         try {
                                           watch.AddLoss(microbatch, loss);
                                         } catch (const Diverged& diverged) {
                                           notes_.TellDiverged(diverged.step, diverged.where);
                                         }
                                       });
    worker_options.watch = [&](int64_t microbatch, double loss) {
      if (notes_.diverged() == Notes::kNever) told_losses_->Tell(microbatch, loss);
    };
    worker_options.begin = [this](std::string at) { link_.SetPlace(std::move(at)); };
    worker_ = std::make_unique<Worker>(program_, plan, worker_options, until, *backend.transport,
                                       losses_);
    RankRun run;
    run.result = worker_->Run();
    link_.SetPlace("");
    told_losses_->Finish();
    run.losses = losses_;
    run.breaking = compute_->FirstBreaking();
    std::erase_if(run.result.spans, [&](const Span& span) { return span.end >= until.ended(); });
    for (size_t i = 0; i < plan.stages.size(); ++i) {
      const float* weights = compute_->FinalWeights(i, run.result.newest_weights[i]);
      run.weights.emplace_back(weights, weights + compute_->layout(i).size());
    }
    return run;
  }

  /// On rank 0: what all ranks came to.
  ProcessesResult Gather(const std::vector<ClockOffset>& clocks, RankRun own) {
    std::vector<RankRun> runs;
    runs.push_back(std::move(own));
    for (int peer = 1; peer < link_.size(); ++peer) {
      runs.push_back(TakeFrom(link_, peer, ProcessTransport::kFreeTag + 2,
                              plans_[static_cast<size_t>(peer)].stages.size()));
    }
    AlignSpans(clocks, runs);
    std::vector<double> losses = GatherLosses(program_.schedule(), runs);
    std::vector<WorkerResult> results;
    for (RankRun& run : runs) results.push_back(std::move(run.result));
    AlignReceives(results);
    if (notes_.diverged() != Notes::kNever) {
      Diverged diverged(notes_.diverged());
      diverged.where = notes_.diverged_where();
      std::vector<std::optional<Breaking>> seen;
      for (const RankRun& run : runs) seen.push_back(run.breaking);
      return {DivergedOutcome(program_, options_, results, std::move(losses), diverged, seen,
                              NotFinite(runs)),
              clocks};
    }
    const std::vector<StageLayout> layouts = Layouts();
    std::vector<StageWeights> placed(static_cast<size_t>(program_.schedule().placed_stages()));
    for (size_t rank = 0; rank < runs.size(); ++rank) {
      for (size_t i = 0; i < runs[rank].weights.size(); ++i) {
        const StagePlan& stage = plans_[rank].stages[i];
        placed[static_cast<size_t>(stage.stage)] = {&layouts[static_cast<size_t>(stage.slice)],
                                                    runs[rank].weights[i].data()};
      }
    }
    return {Outcome(program_, options_, corpus_, plans_, results, std::move(placed), losses),
            clocks};
  }

  std::vector<StageLayout> Layouts() const {
    std::vector<StageLayout> layouts;
    for (const LayerRange& range : options_.split) layouts.emplace_back(options_.shape, range);
    return layouts;
  }

  /// By slice of the network.
  std::vector<std::string> NotFinite(const std::vector<RankRun>& runs) const {
    const std::vector<StageLayout> layouts = Layouts();
    std::vector<std::string> tensors(layouts.size());
    for (size_t rank = 0; rank < runs.size(); ++rank) {
      for (size_t i = 0; i < runs[rank].weights.size(); ++i) {
        const auto slice = static_cast<size_t>(plans_[rank].stages[i].slice);
        if (tensors[slice].empty()) {
          tensors[slice] = FirstNotFinite(layouts[slice], runs[rank].weights[i].data());
        }
      }
    }
    return tensors;
  }

  const Program& program_;
  const TrainingOptions& options_;
  const Corpus& corpus_;
  RunControl& control_;
  std::vector<double> losses_;
  // Hold what messages under way are filled with or fill, so they outlive the link's work.
  std::unique_ptr<Backends> backends_;
  std::unique_ptr<TrainingCompute> compute_;
  std::unique_ptr<Transport> own_transport_;
  std::unique_ptr<Worker> worker_;
  ProcessLink link_;
  ProcessTransport transport_;
  Notes notes_;
  std::unique_ptr<LossMessages> told_losses_;
  int rank_;
  std::vector<RankPlan> plans_;
};

}  // namespace

std::optional<ProcessesResult> TrainOnProcesses(const Program& program,
                                                const TrainingOptions& options,
                                                const Corpus& corpus, Wire& wire,
                                                const Interposer& interpose) {
  const OpenProcessBackends open = [](const Program& of, const TrainingOptions& with,
                                      const Corpus& from, ProcessLink& link, int) {
    return std::make_unique<CpuProcess>(of, with, from, link.control());
  };
  return TrainOnProcesses(program, options, corpus, wire, open, interpose);
}

std::optional<ProcessesResult> TrainOnProcesses(const Program& program,
                                                const TrainingOptions& options,
                                                const Corpus& corpus, Wire& wire,
                                                const OpenProcessBackends& open,
                                                const Interposer& interpose) {
  CheckFits(program, options);
  const Schedule& schedule = program.schedule();
  if (wire.size() != schedule.ranks) {
    const std::string ranks = schedule.replicas == 1
                                  ? fmt::format("{} ranks", schedule.ranks)
                                  : fmt::format("{} replicas of {} ranks", schedule.replicas,
                                                schedule.ranks_per_replica());
    throw Error(fmt::format("there are {} processes, but {} has {}: start one for each rank",
                            wire.size(), schedule.name, ranks));
  }
  RunControl control(options.deadline);
  const OverdueWatch overdue(control, options.end_overdue);
  return ProcessRun(program, options, corpus, wire, control).Run(open, interpose);
}

}  // namespace pipelag
