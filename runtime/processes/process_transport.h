// Messages and collectives between ranks that are processes of their own. Knows how a program
// numbers its lanes and groups, not what it computes.
#pragma once

#include <memory>
#include <vector>

#include "models/schedule/program.h"
#include "runtime/compute.h"
#include "runtime/processes/gradient_sum.h"
#include "runtime/processes/process_link.h"
#include "runtime/rank_plan.h"
#include "runtime/transport.h"

namespace pipelag {

/// Rank r of the program is process r of the wire. Gradients are added by all members, a part each
/// (gradient_sum.h). The few numbers of a norm go to the member of the lowest rank, which adds them
/// and sends the result back.
class ProcessTransport : public Transport {
 public:
  /// Borrows both. Throws Error for more lanes and groups than there are tags.
  ProcessTransport(const Program& program, ProcessLink& link);

  /// Room for the sums of gradients of this rank, before the first of them. `compute` has their
  /// summands.
  void Reserve(const RankPlan& plan, Compute& compute);

  EventPtr Post(const Transfer& transfer, std::span<const EventPtr> after) override;
  EventPtr PostGradientSum(int group, const std::vector<GradientPart>& parts,
                           std::span<const EventPtr> after) override;
  EventPtr PostAllReduce(int group, std::span<double> values,
                         std::span<const EventPtr> after) override;

  /// Tags from here on, sixteen, are nobody's: the same whatever the program, so that processes
  /// with different ones can tell each other.
  static constexpr int kFreeTag = 32768 - 16;

 private:
  const Program& program_;
  ProcessLink& link_;
  int rank_;
  std::vector<int64_t> posted_;  // halves of each lane
  class Sum;
  struct Gradients {
    std::shared_ptr<const GradientSum> last;
    std::shared_ptr<std::vector<float>> received = std::make_shared<std::vector<float>>();
  };
  std::vector<Gradients> gradients_;              // by group
  std::vector<std::shared_ptr<const Sum>> last_;  // of norms and barriers, by group
};

}  // namespace pipelag
