// What a simulator of 1F1B could do at its least, and what a plain one does: the orders written
// out, uniform times, nothing checked and nothing summed up. To be compared with, and to be agreed
// with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <queue>
#include <tuple>
#include <vector>

namespace pipelag {

/// 1F1B with a flush, written out without the project's own generator.
class Baseline1F1B {
 public:
  Baseline1F1B(int ranks, int microbatches, int64_t forward, int64_t backward, int64_t latency)
      : ranks_(ranks), m_(microbatches), takes_{forward, backward}, latency_(latency) {
    for (int s = 0; s < ranks; ++s) {
      std::vector<int>& order = orders_.emplace_back();  // F of i as 2 i, B as 2 i + 1
      const int warm_up = std::min(m_, ranks - 1 - s);
      for (int i = 0; i < m_ + warm_up; ++i) {
        if (i < m_) order.push_back(2 * i);
        if (i >= warm_up) order.push_back(2 * (i - warm_up) + 1);
      }
    }
  }

  /// Makespan by one visit per action, in an order in which all it needs is known.
  int64_t InOrder() {
    Reset();
    std::vector<int> ready;
    for (int s = ranks_ - 1; s >= 0; --s) ready.push_back(s);
    while (!ready.empty()) {
      const int s = ready.back();
      ready.pop_back();
      for (auto& at = at_[Index(s)]; at < orders_[Index(s)].size(); ++at) {
        const int action = orders_[Index(s)][at];
        const int64_t arrived = Arrival(s, action);
        if (arrived < 0) break;
        free_[Index(s)] = std::max(free_[Index(s)], arrived) + takes_[action & 1];
        const int to = Deliver(s, action, free_[Index(s)]);
        if (to >= 0) ready.push_back(to);
      }
    }
    return *std::max_element(free_.begin(), free_.end());
  }

  /// Makespan by a heap of events: ends of actions and arrivals of messages.
  int64_t ByEvents() {
    Reset();
    std::vector<bool> busy(Index(ranks_));
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
    int64_t now = 0;
    int64_t sequence = 0;
    const auto start = [&](int s) {
      const size_t at = at_[Index(s)];
      if (busy[Index(s)] || at == orders_[Index(s)].size()) return;
      const int action = orders_[Index(s)][at];
      const int64_t arrived = Arrival(s, action);
      if (arrived < 0 || arrived > now) return;
      busy[Index(s)] = true;
      events.push({now + takes_[action & 1], sequence++, s, action});
    };
    for (int s = 0; s < ranks_; ++s) start(s);
    while (!events.empty()) {
      const auto [time, number, s, action] = events.top();
      events.pop();
      now = time;
      if (action >= 0) {
        busy[Index(s)] = false;
        ++at_[Index(s)];
        const int to = Deliver(s, action, now);
        if (to >= 0) events.push({now + latency_, sequence++, to, -1});
      }
      start(s);
    }
    return now;
  }

 private:
  using Event = std::tuple<int64_t, int64_t, int, int>;  // time, number, stage, action or -1

  static size_t Index(int64_t i) { return static_cast<size_t>(i); }
  size_t Cell(int s, int action) const { return Index(int64_t{s} * 2 * m_ + action); }

  void Reset() {
    arrivals_.assign(Cell(ranks_, 0), -1);
    free_.assign(Index(ranks_), 0);
    at_.assign(Index(ranks_), 0);
  }
  int64_t Arrival(int s, int action) const {
    const bool backward = (action & 1) != 0;
    if (backward ? s == ranks_ - 1 : s == 0) return 0;
    return arrivals_[Cell(s, action)];
  }
  /// The stage that waits for the result, -1 if none does.
  int Deliver(int s, int action, int64_t end) {
    const int to = (action & 1) != 0 ? s - 1 : s + 1;
    if (to < 0 || to == ranks_) return -1;
    arrivals_[Cell(to, action)] = end + latency_;
    return to;
  }

  int ranks_;
  int m_;
  int64_t takes_[2];
  int64_t latency_;
  std::vector<std::vector<int>> orders_;
  std::vector<int64_t> arrivals_;
  std::vector<int64_t> free_;
  std::vector<size_t> at_;
};

}  // namespace pipelag
