// Small traces by hand and random ones, for the tests of this room.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "models/random.h"
#include "traces/trace.h"

namespace pipelag::sample {

/// A compute action of `rank`, holding stage = rank.
inline Span Act(int rank, ActionKind kind, int64_t microbatch, int64_t start, int64_t end,
                int64_t wait = 0) {
  Span span;
  span.rank = rank;
  span.kind = kind;
  span.stage = rank;
  span.microbatch = microbatch;
  span.start = Nanoseconds{start};
  span.end = Nanoseconds{end};
  span.wait = Nanoseconds{wait};
  return span;
}

inline Span Transfer(int rank, ActionKind kind, int peer, int64_t microbatch, int64_t start,
                     int64_t end) {
  Span span = Act(rank, kind, microbatch, start, end);
  span.peer = peer;
  span.bytes = 64;
  return span;
}

inline Trace Empty(int ranks, int64_t microbatches, int64_t steps) {
  Trace trace;
  trace.schedule = "by hand";
  trace.ranks = trace.stages = ranks;
  trace.microbatches = microbatches;
  trace.steps = steps;
  for (int rank = 0; rank < ranks; ++rank) trace.stage_rank.push_back(rank);
  return trace;
}

/// GPipe, F = `forward`, B = `backward`, message `hop` later, no updates, one step after the other.
inline Trace GPipe(int ranks, int64_t microbatches, int64_t steps, int64_t forward,
                   int64_t backward, int64_t hop) {
  Trace trace = Empty(ranks, microbatches, steps);
  trace.schedule = "gpipe";
  std::vector<int64_t> free(static_cast<size_t>(ranks));
  const auto act = [&](int rank, ActionKind kind, int64_t microbatch, int64_t data, int64_t time) {
    int64_t& own = free[static_cast<size_t>(rank)];
    const int64_t start = std::max(own, data);
    trace.spans.push_back(Act(rank, kind, microbatch, start, start + time, start - own));
    return own = start + time;
  };
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t zero = *std::max_element(free.begin(), free.end());
    std::fill(free.begin(), free.end(), zero);
    for (int64_t k = step * microbatches; k < (step + 1) * microbatches; ++k) {
      int64_t ready = zero;
      for (int r = 0; r < ranks; ++r) ready = act(r, ActionKind::kForward, k, ready, forward) + hop;
    }
    for (int64_t k = step * microbatches; k < (step + 1) * microbatches; ++k) {
      int64_t ready = zero;
      for (int r = ranks - 1; r >= 0; --r) {
        ready = act(r, ActionKind::kBackward, k, ready, backward) + hop;
      }
    }
  }
  SortSpans(trace);
  return trace;
}

/// A source of luck: the same for the same seed.
class Luck {
 public:
  explicit Luck(uint64_t seed) : seed_(seed) {}
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(
        UniformBelow(RandomBits(seed_, next_++), static_cast<uint64_t>(bound)));
  }

 private:
  uint64_t seed_;
  uint64_t next_ = 0;
};

/// All kinds, times that touch, overlap, coincide or are zero, halves of OVERLAPs and lone ones.
/// Makes no sense as a run. Times reach up to `longest`.
inline Trace Random(uint64_t seed, int64_t longest) {
  Luck luck(seed);
  Trace trace = Empty(static_cast<int>(1 + luck.Below(4)), 1 + luck.Below(5), 1 + luck.Below(4));
  trace.schedule = luck.Below(2) == 0 ? "a \"quoted\"\n\\ name" : "1f1b";
  trace.tokens_per_step = luck.Below(2) * 4096;
  if (luck.Below(2) == 0 && trace.microbatches % trace.ranks == 0) trace.replicas = trace.ranks;
  const auto count = static_cast<size_t>(luck.Below(60));
  int64_t clock = 0;
  const auto rank = [&] { return static_cast<int>(luck.Below(trace.ranks)); };
  while (trace.spans.size() < count) {
    Span span;
    span.rank = rank();
    span.kind = static_cast<ActionKind>(luck.Below(10));
    span.stage = rank();
    span.microbatch = luck.Below(20);
    if (IsSend(span.kind) || IsReceive(span.kind)) span.peer = rank();
    if (luck.Below(3) != 0)
      clock = luck.Below(2) == 0 ? clock + luck.Below(5) : luck.Below(longest);
    clock = std::min(clock, longest);
    span.start = Nanoseconds{clock};
    const int64_t room = longest - clock;
    span.end = span.start + Nanoseconds{luck.Below(3) == 0 ? 0 : luck.Below(room + 1)};
    if (luck.Below(2) == 0) clock = span.end.count();
    span.wait = Nanoseconds{luck.Below(2) * luck.Below(1000)};
    span.weight_version = luck.Below(4) - 1;
    span.bytes = luck.Below(2) * luck.Below(int64_t{1} << 40);
    span.overlapped = luck.Below(8) == 0;
    trace.spans.push_back(span);
    if (span.kind == ActionKind::kForward && span.overlapped) {
      span.kind = luck.Below(2) == 0 ? ActionKind::kBackward : ActionKind::kBackwardInput;
      span.microbatch = luck.Below(20);
      trace.spans.push_back(span);
    }
  }
  SortSpans(trace);
  return trace;
}

}  // namespace pipelag::sample
