// Messages and collectives between ranks that are processes of their own. Knows how a program
// numbers its lanes and groups, not what it computes.
#pragma once

#include <memory>
#include <vector>

#include "models/schedule/program.h"
#include "runtime/processes/process_link.h"
#include "runtime/transport.h"

namespace pipelag {

/// Rank r of the program is process r of the wire. Sums go to the member of the lowest rank, which
/// adds in the order that Transport states and sends the result back.
class ProcessTransport : public Transport {
 public:
  /// Borrows both. Throws Error for more lanes and groups than there are tags.
  ProcessTransport(const Program& program, ProcessLink& link);

  EventPtr Post(const Transfer& transfer, std::span<const EventPtr> after) override;
  EventPtr PostGradientSum(int group, const std::vector<GradientPart>& parts,
                           std::span<const EventPtr> after) override;
  EventPtr PostAllReduce(int group, std::span<double> values,
                         std::span<const EventPtr> after) override;

  /// Tags from here on are nobody's.
  int free_tag() const { return free_tag_; }

 private:
  /// Behind the collective before it.
  EventPtr BeginInOrder(ProcessLink::Advance advance, int group);

  const Program& program_;
  ProcessLink& link_;
  int rank_;
  int free_tag_;
  std::vector<int64_t> posted_;  // halves of each lane
  EventPtr last_collective_;
};

}  // namespace pipelag
