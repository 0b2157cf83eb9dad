// One program over everything that moves messages between CPU ranks, held against its serial
// reference and against what the program foretells of its own memory.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "models/schedule/slots.h"
#include "runtime/cpu/threads.h"
#include "runtime/serial.h"
#include "tests/reason.h"
#include "tests/runtime/socket_pairs.h"
#include "tests/runtime/synchronous_transport.h"

namespace pipelag {

inline TrainingResult TrainSynchronously(const Program& program, const TrainingOptions& options,
                                         const Corpus& corpus) {
  std::vector<std::unique_ptr<SynchronousTransport>> transports;
  return TrainOnThreads(program, options, corpus, [&](int, RankBackend inner, RunControl&) {
    transports.push_back(std::make_unique<SynchronousTransport>(*inner.transport));
    return RankBackend{inner.compute, transports.back().get()};
  });
}

inline void ExpectPeaksAsPlanned(const Program& program, const TrainingResult& result) {
  const std::vector<int> slots = NeverDelayingSlots(program);
  for (int rank = 0; rank < program.schedule().ranks; ++rank) {
    const RankPlan plan = PlanRank(program, rank, slots);
    int handovers = 0;
    for (const MessagePlan& messages : plan.messages) {
      if (messages.lane == kHandover) handovers = messages.buffers;
    }
    EXPECT_EQ(result.peak_handovers[static_cast<size_t>(rank)], handovers);
    for (const StagePlan& stage : plan.stages) {
      const auto s = static_cast<size_t>(stage.stage);
      EXPECT_EQ(result.peak_activations[s], program.PeakInFlight(stage.stage)) << s;
      EXPECT_EQ(result.peak_kept[s], stage.kept_slots) << s;
      // Late updates leave one of 2BW's two versions unread where nothing runs ahead.
      const int versions = program.versions(stage.stage).weight_versions;
      if (program.schedule().policy == WeightPolicy::kDoubleBuffered) {
        EXPECT_LE(result.peak_versions[s], versions) << s;
      } else {
        EXPECT_EQ(result.peak_versions[s], versions) << s;
      }
    }
  }
}

inline void ExpectSame(const TrainingResult& run, const TrainingResult& serial) {
  EXPECT_EQ(run.weights_sha256, serial.weights_sha256);
  EXPECT_EQ(run.step_losses, serial.step_losses);
  EXPECT_EQ(run.validation_loss, serial.validation_loss);
  EXPECT_EQ(run.trace.tokens_per_step, serial.trace.tokens_per_step);
}

/// Threads; a connection for each pair of ranks, as between processes; sends that return when they
/// have been received. Returns what the serial reference came to.
inline TrainingResult Agreed(const Program& program, const TrainingOptions& options,
                             const Corpus& corpus) {
  TrainingResult serial = TrainSerially(PlanOf(program), options, corpus);
  EXPECT_FALSE(serial.diverged);
  const TrainingResult threads = TrainOnThreads(program, options, corpus);
  ExpectSame(threads, serial);
  ExpectPeaksAsPlanned(program, threads);
  ExpectSame(TrainOnSocketPairs(program, options, corpus), serial);
  ExpectSame(TrainSynchronously(program, options, corpus), serial);
  return serial;
}

}  // namespace pipelag
