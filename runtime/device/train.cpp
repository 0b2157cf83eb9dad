#include "runtime/device/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "models/environment.h"
#include "runtime/device/communicators.h"
#include "runtime/device/device_compute.h"
#include "runtime/device/device_hub.h"
#include "runtime/device/nccl_transport.h"
#include "runtime/device/validation.h"

namespace pipelag {
namespace {

MakeDeviceStage StagesOf(DeviceBackend& backend) {
  return [&backend](const DeviceStageOptions& options) { return backend.MakeStage(options); };
}

CollectiveLibrary& NcclOf(DeviceBackend& backend) {
  CollectiveLibrary* library = nullptr;
  try {
    library = backend.collectives();
  } catch (const Error& error) {
    throw Error(fmt::format("--transport nccl: {}", error.what()));
  }
  if (library == nullptr) throw Error("--transport nccl: this build has no NCCL");
  return *library;
}

void CheckGraphs(const DeviceRun& run) {
  if (!run.graphs || run.transport == DeviceTransport::kLocal) return;
  throw Error(
      "--cuda-graphs on: goes with --transport local only: a graph takes memory of the GPU when it "
      "is made, which may wait for NCCL's receives, and those for other ranks");
}

/// The most bytes that a summand of each group has, on whatever rank.
std::vector<size_t> SummandBytes(const Program& program, const TrainingOptions& options) {
  using Purpose = CollectiveGroup::Purpose;
  const Schedule& schedule = program.schedule();
  const auto bytes_of = [&](const CollectiveGroup& group) -> size_t {
    switch (group.purpose) {
      case Purpose::kNorm:
        return static_cast<size_t>(TensorCount(options.shape)) * sizeof(double);
      case Purpose::kBarrier:
        return sizeof(double);
      case Purpose::kShared:
        return static_cast<size_t>(int64_t{options.shape.vocabulary} * options.shape.hidden) *
               sizeof(float);
      case Purpose::kReplicas:
      case Purpose::kWeights: {
        const auto slice = static_cast<size_t>(schedule.SliceOf(group.stages.front()));
        const StageLayout layout(options.shape, options.split[slice]);
        return static_cast<size_t>(layout.gradient_size()) * sizeof(float);
      }
    }
    CHECK(false);
  };
  std::vector<size_t> bytes;
  for (const CollectiveGroup& group : schedule.groups) bytes.push_back(bytes_of(group));
  return bytes;
}

/// Messages of all lanes from one device to itself.
class SelfLoop {
 public:
  SelfLoop(const Program& program, CollectiveLibrary& library, DeviceClock& clock,
           RunControl& control)
      : communicators_(library, clock, control, 0) {
    std::vector<Communicators::Member> members;
    for (size_t lane = 0; lane < program.lanes().size(); ++lane) {
      members.push_back({static_cast<int>(lane), {0}, fmt::format("lane {} waits for NCCL", lane)});
    }
    communicators_.Open(members, {});
  }

  void Move(int lane, Stream stream, void* to, const void* from, size_t bytes) {
    // NCCL only reads what it sends.
    const Communicator::Half both[] = {{true, 0, const_cast<void*>(from), bytes},
                                       {false, 0, to, bytes}};
    communicators_.Post(lane, both, stream);
  }

 private:
  Communicators communicators_;
};

class DeviceThreads : public Backends {
 public:
  DeviceThreads(const Program& program, const TrainingOptions& options, const Corpus& corpus,
                RunControl& control, DeviceBackend& backend, const DeviceRun& run)
      : program_(program),
        options_(options),
        corpus_(corpus),
        control_(control),
        backend_(backend),
        run_(run) {
    const int ranks = program.schedule().ranks;
    const int devices = std::min(backend.devices(), ranks);
    for (int d = 0; d < devices; ++d) {
      devices_.push_back(backend.Open(d));
      clocks_.push_back(std::make_unique<DeviceClock>(*devices_.back(), control));
    }
    for (int rank = 0; rank < ranks; ++rank) {
      clock_of_.push_back(clocks_[static_cast<size_t>(rank * devices / ranks)].get());
    }
    MoveMessage move;
    if (run.transport == DeviceTransport::kNccl) {
      if (devices > 1 && devices < ranks) {
        throw Error(
            fmt::format("--transport nccl: there are {} ranks, but {} GPUs: NCCL takes one rank a "
                        "GPU, or all on one",
                        ranks, devices));
      }
      CollectiveLibrary& library = NcclOf(backend);
      if (devices == 1) {
        loop_ = std::make_unique<SelfLoop>(program, library, *clocks_.front(), control);
        move = [this](int lane, Stream stream, void* to, const void* from, size_t bytes) {
          loop_->Move(lane, stream, to, from, bytes);
        };
      } else {
        others_ = AmongThreads(control, ranks);
        return;
      }
    }
    hub_ = std::make_unique<DeviceHub>(program, control, clock_of_, SummandBytes(program, options),
                                       std::move(move));
  }

  std::unique_ptr<TrainingCompute> MakeCompute(const RankPlan& plan, OnUpdate on_update) override {
    return std::make_unique<DeviceCompute>(
        plan, options_, run_.precision, run_.graphs, program_.schedule().microbatches, corpus_,
        *clock_of_[static_cast<size_t>(plan.rank)], StagesOf(backend_), std::move(on_update));
  }
  std::unique_ptr<Transport> MakeTransport(int rank) override {
    if (hub_) return hub_->End(rank);
    return std::make_unique<NcclTransport>(program_, rank, NcclOf(backend_), others_,
                                           SummandBytes(program_, options_),
                                           *clock_of_[static_cast<size_t>(rank)], control_);
  }

 private:
  const Program& program_;
  const TrainingOptions& options_;
  const Corpus& corpus_;
  RunControl& control_;
  DeviceBackend& backend_;
  DeviceRun run_;
  std::vector<std::unique_ptr<ComputeDevice>> devices_;
  std::vector<std::unique_ptr<DeviceClock>> clocks_;
  std::vector<DeviceClock*> clock_of_;  // by rank
  Rendezvous others_;
  std::unique_ptr<SelfLoop> loop_;
  std::unique_ptr<DeviceHub> hub_;
};

/// Names and news go over the link as messages of two tags from `tag` on.
Rendezvous AmongProcesses(ProcessLink& link, int tag) {
  // Every rank gets a name from the first one.
  const auto share = [&link, tag](int number, const std::vector<int>& ranks,
                                  const std::function<CollectiveLibrary::Id()>& make) {
    const auto id = std::make_shared<CollectiveLibrary::Id>();
    if (make) {
      *id = make();
      std::vector<EventPtr> sent;
      for (const int rank : ranks) {
        if (rank == link.rank()) continue;
        sent.push_back(link.Send(rank, tag, *id,
                                 fmt::format("rank {} waits for rank {} to take the name of "
                                             "communicator {}",
                                             link.rank(), rank, number),
                                 id));
      }
      for (const EventPtr& event : sent) event->Wait();
    } else {
      link.Receive(ranks.front(), tag, *id,
                   fmt::format("rank {} waits for rank {} to name communicator {}", link.rank(),
                               ranks.front(), number),
                   id)
          ->Wait();
    }
    return *id;
  };
  // Rank 0 hears from all, then all hear from it.
  const auto meet = [&link, tag](int rank) {
    const auto hear = [&](int peer) {
      const auto news = std::make_shared<std::array<std::byte, 1>>();
      link.Receive(peer, tag + 1, *news,
                   fmt::format("rank {} waits for rank {} to be connected", rank, peer), news)
          ->Wait();
    };
    const auto tell = [&](int peer) {
      const auto news = std::make_shared<std::array<std::byte, 1>>();
      link.Send(peer, tag + 1, *news,
                fmt::format("rank {} waits for rank {} to hear that it is connected", rank, peer),
                news)
          ->Wait();
    };
    if (rank != 0) {
      tell(0);
      return hear(0);
    }
    for (int peer = 1; peer < link.size(); ++peer) hear(peer);
    for (int peer = 1; peer < link.size(); ++peer) tell(peer);
  };
  return {share, meet};
}

class DeviceProcess : public Backends {
 public:
  DeviceProcess(const Program& program, const TrainingOptions& options, const Corpus& corpus,
                ProcessLink& link, int tag, DeviceBackend& backend, const DeviceRun& run,
                int ordinal)
      : program_(program),
        options_(options),
        corpus_(corpus),
        link_(link),
        tag_(tag),
        backend_(backend),
        run_(run),
        device_(backend.Open(ordinal)),
        clock_(*device_, link.control()) {}

  std::unique_ptr<TrainingCompute> MakeCompute(const RankPlan& plan, OnUpdate on_update) override {
    return std::make_unique<DeviceCompute>(plan, options_, run_.precision, run_.graphs,
                                           program_.schedule().microbatches, corpus_, clock_,
                                           StagesOf(backend_), std::move(on_update));
  }
  std::unique_ptr<Transport> MakeTransport(int rank) override {
    return std::make_unique<NcclTransport>(
        program_, rank, NcclOf(backend_), AmongProcesses(link_, tag_),
        SummandBytes(program_, options_), clock_, link_.control());
  }

 private:
  const Program& program_;
  const TrainingOptions& options_;
  const Corpus& corpus_;
  ProcessLink& link_;
  int tag_;
  DeviceBackend& backend_;
  DeviceRun run_;
  std::unique_ptr<ComputeDevice> device_;
  DeviceClock clock_;
};

}  // namespace

OpenBackends OnDevices(DeviceBackend& backend, const DeviceRun& run) {
  CheckGraphs(run);
  return [&backend, run](const Program& program, const TrainingOptions& options,
                         const Corpus& corpus, RunControl& control) {
    return std::make_unique<DeviceThreads>(program, options, corpus, control, backend, run);
  };
}

OpenProcessBackends OnDeviceOfProcess(DeviceBackend& backend, const DeviceRun& run,
                                      int local_rank) {
  CheckGraphs(run);
  return [&backend, run, local_rank](const Program& program, const TrainingOptions& options,
                                     const Corpus& corpus, ProcessLink& link, int free_tag) {
    return std::make_unique<DeviceProcess>(program, options, corpus, link, free_tag, backend, run,
                                           local_rank % backend.devices());
  };
}

TrainingOptions ValidatedOnDevice(TrainingOptions options, DeviceBackend& backend,
                                  const DeviceRun& run, const Corpus& corpus) {
  options.validation = [of = options, &backend, run,
                        &corpus](const std::vector<const float*>& stage_weights) {
    const std::unique_ptr<ComputeDevice> device = backend.Open(0);
    return DeviceValidationLoss(of, run.precision, corpus, stage_weights, *device,
                                StagesOf(backend));
  };
  return options;
}

std::optional<int> LocalRank() {
  constexpr int kMost = 4096;
  for (const char* name :
       {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
    if (const std::optional<int> rank = NumberInEnvironment(name, 0, kMost)) return rank;
  }
  return std::nullopt;
}

}  // namespace pipelag
