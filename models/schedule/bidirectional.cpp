#include "models/schedule/bidirectional.h"

#include <deque>

namespace pipelag {
namespace {

class RankOrder {
 public:
  explicit RankOrder(const BidirectionalChunk (&chunks)[2]) : chunks_(chunks) {}

  void Forward(int c) { Add(ActionKind::kForward, c, forwards_[c]++); }
  void Backward(int c) { Add(ActionKind::kBackward, c, backwards_[c]++); }

  /// Only the input half; its weight half waits its turn.
  void Input(int c) {
    const int i = backwards_[c]++;
    Add(ActionKind::kBackwardInput, c, i);
    weights_.push_back(
        MakeAction(ActionKind::kBackwardWeight, chunks_[c].stage, chunks_[c].first_microbatch + i));
  }
  void Weight() {
    body_.push_back(weights_.front());
    weights_.pop_front();
  }

  void Overlapped(int forward, int backward) {
    Forward(forward);
    body_.back().overlaps_next = true;
    Backward(backward);
  }

  std::vector<Action> Take() { return std::move(body_); }

 private:
  void Add(ActionKind kind, int c, int i) {
    body_.push_back(MakeAction(kind, chunks_[c].stage, chunks_[c].first_microbatch + i));
  }

  const BidirectionalChunk (&chunks_)[2];
  int forwards_[2] = {};
  int backwards_[2] = {};
  std::deque<Action> weights_;
  std::vector<Action> body_;
};

}  // namespace

std::vector<Action> BidirectionalOrder(int depth, int depths, int main_steps,
                                       const BidirectionalChunk (&chunks)[2]) {
  RankOrder order(chunks);
  const int outside = depths - depth - 1;
  const int inside = depth + 1;
  for (int i = 0; i < 2 * outside; ++i) order.Forward(0);
  for (int i = 0; i < inside; ++i) {
    order.Forward(0);
    order.Forward(1);
  }
  for (int i = 0; i < outside; ++i) {
    order.Input(1);
    order.Weight();
    order.Forward(1);
  }
  for (int i = 0; i < main_steps; ++i) {
    if (i == 0 && outside == 0) {
      // The innermost ranks would only put off the first gradient by overlapping it.
      order.Forward(0);
      order.Backward(1);
    } else {
      order.Overlapped(0, 1);
    }
    order.Overlapped(1, 0);
  }
  for (int i = 0; i < outside; ++i) {
    order.Backward(1);
    order.Overlapped(1, 0);
  }
  // The second half of these is split, to fill the way out with their W.
  for (int i = 0; i < 2 * inside; ++i) {
    const int chunk = i % 2 == 0 ? 1 : 0;
    if (i < inside) {
      order.Backward(chunk);
    } else {
      order.Input(chunk);
    }
  }
  for (int i = 0; i < outside; ++i) {
    order.Weight();
    order.Input(0);
  }
  for (int i = 0; i < inside; ++i) order.Weight();
  return order.Take();
}

}  // namespace pipelag
