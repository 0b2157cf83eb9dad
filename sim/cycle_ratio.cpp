#include "sim/cycle_ratio.h"

#include <numeric>

#include "models/error.h"

namespace pipelag {
namespace {

__extension__ using Wide = __int128;

class Howard {
 public:
  Howard(int nodes, const std::vector<CycleEdge>& edges, std::vector<int> policy)
      : edges_(edges),
        policy_(std::move(policy)),
        value_(static_cast<size_t>(nodes)),
        reached_(static_cast<size_t>(nodes)) {
    BuildOutgoing();
  }

  CycleRatio Run() {
    do {
      FindDearestCycle();
      Evaluate();
    } while (Improve());
    CycleRatio result{{num_, den_}, {}};
    for (int v = root_; result.cycle.empty() || v != root_; v = Before(v)) {
      result.cycle.push_back(policy_[static_cast<size_t>(v)]);
    }
    // Found against the arrows.
    result.cycle = {result.cycle.rbegin(), result.cycle.rend()};
    return result;
  }

 private:
  const CycleEdge& Chosen(int v) const {
    return edges_[static_cast<size_t>(policy_[static_cast<size_t>(v)])];
  }
  int Before(int v) const { return Chosen(v).from; }
  Wide Cost(const CycleEdge& e) const {
    return static_cast<Wide>(den_) * e.weight - static_cast<Wide>(num_) * e.tokens;
  }

  void BuildOutgoing() {
    first_out_.assign(value_.size() + 1, 0);
    for (const CycleEdge& e : edges_) ++first_out_[static_cast<size_t>(e.from) + 1];
    std::partial_sum(first_out_.begin(), first_out_.end(), first_out_.begin());
    out_.resize(edges_.size());
    std::vector<int> next(first_out_.begin(), first_out_.end() - 1);
    for (size_t i = 0; i < edges_.size(); ++i) {
      out_[static_cast<size_t>(next[static_cast<size_t>(edges_[i].from)]++)] = static_cast<int>(i);
    }
  }

  /// The policy has one edge into every node, so walking back from anywhere ends in a cycle.
  void FindDearestCycle() {
    std::vector<int> seen(value_.size(), -1);
    bool any = false;
    for (int start = 0; start < static_cast<int>(value_.size()); ++start) {
      int v = start;
      while (seen[static_cast<size_t>(v)] < 0) {
        seen[static_cast<size_t>(v)] = start;
        v = Before(v);
      }
      if (seen[static_cast<size_t>(v)] != start) continue;
      int64_t weight = 0;
      int64_t tokens = 0;
      int u = v;
      do {
        weight += Chosen(u).weight;
        tokens += Chosen(u).tokens;
        u = Before(u);
      } while (u != v);
      CHECK(tokens > 0);
      if (any && static_cast<Wide>(weight) * den_ <= static_cast<Wide>(num_) * tokens) continue;
      any = true;
      const int64_t divisor = std::gcd(weight, tokens);
      num_ = weight / divisor;
      den_ = tokens / divisor;
      root_ = v;
    }
  }

  /// Values of all nodes as cost of their policy path from the root. A node whose policy path does
  /// not come from the root is attached by an edge that does.
  void Evaluate() {
    std::vector<int> queue{root_};
    std::fill(reached_.begin(), reached_.end(), false);
    value_[static_cast<size_t>(root_)] = 0;
    reached_[static_cast<size_t>(root_)] = true;
    size_t attached_until = 0;
    for (size_t head = 0; head < queue.size() || attached_until < queue.size();) {
      const bool along_policy = head < queue.size();
      const int u = along_policy ? queue[head++] : queue[attached_until++];
      for (int k = first_out_[static_cast<size_t>(u)]; k < first_out_[static_cast<size_t>(u) + 1];
           ++k) {
        const int index = out_[static_cast<size_t>(k)];
        const CycleEdge& e = edges_[static_cast<size_t>(index)];
        const auto v = static_cast<size_t>(e.to);
        if (reached_[v]) continue;
        if (along_policy && policy_[v] != index) continue;
        policy_[v] = index;
        value_[v] = value_[static_cast<size_t>(u)] + Cost(e);
        reached_[v] = true;
        queue.push_back(e.to);
      }
    }
    CHECK(queue.size() == value_.size());
  }

  /// Values raised on the way count at once, and every other time the edges are gone through
  /// backwards: news may have to go far, and mostly goes one way along ranks. Along a chosen edge
  /// the value never grows by more than the cost, so no cycle of the policy is cheaper than the
  /// last one, and one that was not there before is dearer.
  bool Improve() {
    bool improved = false;
    forward_ = !forward_;
    for (size_t k = 0; k < edges_.size(); ++k) {
      const size_t i = forward_ ? k : edges_.size() - 1 - k;
      const CycleEdge& e = edges_[i];
      const Wide value = value_[static_cast<size_t>(e.from)] + Cost(e);
      if (value > value_[static_cast<size_t>(e.to)]) {
        value_[static_cast<size_t>(e.to)] = value;
        policy_[static_cast<size_t>(e.to)] = static_cast<int>(i);
        improved = true;
      }
    }
    return improved;
  }

  const std::vector<CycleEdge>& edges_;
  std::vector<int> policy_;
  std::vector<Wide> value_;
  std::vector<bool> reached_;
  std::vector<int> first_out_;
  std::vector<int> out_;
  int64_t num_ = 0;
  int64_t den_ = 1;
  int root_ = 0;
  bool forward_ = false;
};

}  // namespace

CycleRatio MaximumCycleRatio(int nodes, const std::vector<CycleEdge>& edges,
                             std::vector<int> policy) {
  return Howard(nodes, edges, std::move(policy)).Run();
}

}  // namespace pipelag
