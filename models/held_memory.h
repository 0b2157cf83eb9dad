// What the ranks of a program hold at most, for sizes that are given later: planning and splitting
// ask for the same program with many sizes. Knows no time, for none matters: a rank's activations
// come and go in the order of its lane.
#pragma once

#include <vector>

#include "models/memory.h"
#include "models/schedule/program.h"

namespace pipelag {

class HeldMemory {
 public:
  explicit HeldMemory(const Program& program);

  /// Per rank the peak of everything, as MemoryOverTime of a run's trace shows it. Throws Error as
  /// StandingMemoryOf.
  std::vector<Bytes> PeaksOf(const Program& program, const MemorySizes& sizes) const;

  /// Activations of the placed stages of a rank that are held at once: whole, and after their I.
  struct Held {
    std::vector<int> whole;
    std::vector<int> after_input;
  };
  struct Rank {
    std::vector<int> stages;  ///< placed
    std::vector<Held> most;   ///< no two of which one is never less
  };
  const std::vector<Rank>& ranks() const { return ranks_; }
  /// Receive slots per lane that are there from the start.
  const std::vector<int>& slots() const { return slots_; }

 private:
  static void Note(const Held& now, std::vector<Held>& most);

  std::vector<Rank> ranks_;
  std::vector<int> slots_;  ///< per lane
};

}  // namespace pipelag
