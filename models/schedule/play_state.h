// The state of a played run between two repetitions of the body: read out, and put back later on.
// Knows nothing of what it is good for.
#pragma once

#include "models/schedule/play.h"

namespace pipelag {

/// Calls visit.Thing(value) and visit.Time(time) in an order that is the same for every repetition.
template <class Costs, class Observer>
template <class Self, class Visit>
void Play<Costs, Observer>::VisitState(Self& self, int64_t block, Visit& visit) {
  const int64_t first = block * self.schedule_.microbatches;
  const auto first_slot = static_cast<size_t>(first);
  for (auto& rank : self.ranks_) {
    visit.Time(rank.free);
    if (!rank.reductions.empty()) visit.Time(rank.reduce_free);
    for (size_t i = rank.next_reduction; i < rank.reductions.size(); ++i) {
      visit.Thing(rank.reductions[i].first);
      visit.Thing(rank.reductions[i].second - block);
    }
  }
  for (auto& lane : self.lanes_) {
    visit.Time(lane.free);
    const auto slots = static_cast<int64_t>(lane.releases.size());
    if (slots > 0) visit.Thing(lane.sent - lane.released);
    for (int64_t i = std::max<int64_t>(0, lane.released - slots); i < lane.released; ++i) {
      visit.Time(lane.releases[static_cast<size_t>(i % slots)]);
    }
    for (size_t i = lane.next_pending; i < lane.pending.size(); ++i) {
      visit.Time(lane.pending[i].ready);
      visit.Thing(lane.pending[i].action.stage);
      visit.Thing(lane.pending[i].action.microbatch - first);
    }
  }
  for (auto* arrivals : {&self.forward_arrival_, &self.backward_arrival_}) {
    for (size_t stage = 0; stage < self.routes_.size(); ++stage) {
      for (size_t i = 0; i < self.window_; ++i) {
        auto& at = (*arrivals)[stage * self.window_ + ((first_slot + i) & (self.window_ - 1))];
        if (at == kNever) continue;
        visit.Thing(static_cast<int64_t>(stage * self.window_ + i));
        visit.Time(at);
      }
    }
  }
  for (size_t group = 0; group < self.schedule_.groups.size(); ++group) {
    const int64_t all = self.GradientsPerStep(self.schedule_.groups[group]);
    for (size_t i = 0; i < self.step_window_; ++i) {
      auto& reduction = self.reductions_[self.ReductionSlot(static_cast<int>(group),
                                                            block + static_cast<int64_t>(i))];
      visit.Thing(reduction.remaining);
      visit.Thing(reduction.end == kNever);
      if (reduction.end != kNever) visit.Time(reduction.end);
      if (reduction.remaining != all) visit.Time(reduction.ready);
    }
  }
}

template <class Costs, class Observer>
PlayState Play<Costs, Observer>::StateAt(int64_t block) const {
  struct Reader {
    PlayState state;
    void Thing(int64_t value) { state.things.push_back(value); }
    void Time(int64_t time) { state.times.push_back(time); }
  };
  Reader reader;
  VisitState(*this, block, reader);
  return std::move(reader.state);
}

template <class Costs, class Observer>
void Play<Costs, Observer>::Skip(int64_t block, int64_t blocks, const std::vector<int64_t>& later) {
  struct Writer {
    std::vector<int64_t>::const_iterator next;
    void Thing(int64_t) {}
    void Time(int64_t& time) { time += *next++; }
  };
  Writer writer{later.begin()};
  VisitState(*this, block, writer);
  CHECK(writer.next == later.end());
  const int64_t microbatches = blocks * schedule_.microbatches;
  for (RankState& rank : ranks_) {
    rank.walk.Skip(blocks);
    for (auto& [group, step] : rank.reductions) step += blocks;
  }
  for (LaneState& lane : lanes_) {
    for (Message& message : lane.pending) {
      message.action.microbatch += microbatches;
      message.action.step += blocks;
    }
  }
  const auto rotate = [](auto& ring, size_t size, int64_t by) {
    const size_t shift = static_cast<size_t>(by) & (size - 1);
    for (auto from = ring.begin(); from != ring.end(); from += static_cast<ptrdiff_t>(size)) {
      std::rotate(from, from + static_cast<ptrdiff_t>(size - shift) % static_cast<ptrdiff_t>(size),
                  from + static_cast<ptrdiff_t>(size));
    }
  };
  rotate(forward_arrival_, window_, microbatches);
  rotate(backward_arrival_, window_, microbatches);
  rotate(reductions_, step_window_, blocks);
}

}  // namespace pipelag
