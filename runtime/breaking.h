// Where the values of a run broke: which action of which stage was the first to make values that
// are not finite of values that are. Knows no ranks and no schedule.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "models/schedule/schedule.h"
#include "runtime/network/layout.h"

namespace pipelag {

struct Breaking {
  int64_t step = 0;   ///< counted from the first of the run's own
  int64_t phase = 0;  ///< of the step: forwards, backwards, norms
  int64_t order = 0;  ///< within the phase
  std::string where;  ///< "stage 1: the output of 1F3 is not finite"

  bool operator<(const Breaking& other) const {
    return std::tie(step, phase, order) < std::tie(other.step, other.phase, other.order);
  }
};

/// Of what several ranks saw; none if none saw any.
std::optional<Breaking> Earliest(const std::vector<std::optional<Breaking>>& seen);

/// Looks at what the actions of one rank yield. Reads each message once more than its maker, while
/// it is still in the cache: about a thousandth of the time of the action.
class BreakWatch {
 public:
  /// An action of a stage, after it has been done.
  struct Action {
    ActionKind kind = ActionKind::kForward;  ///< F, B or I
    int slice = 0;
    int64_t step = 0;
    int64_t microbatch = 0;
    std::span<const float> input = {};   ///< message; empty: none
    std::span<const float> output = {};  ///< likewise
    double loss = 0;                     ///< of a last stage's F
    const float* weights = nullptr;      ///< that it read
  };
  void See(const Action& action, const StageLayout& layout);
  /// Squared norms of a stage's gradient, at their tensors' global places.
  void SeeNorms(int slice, int64_t step, const StageLayout& layout, std::span<const double> norms);

  /// None while all is finite, or where what came in was not.
  const std::optional<Breaking>& first() const { return first_; }

 private:
  bool broken_ = false;
  std::optional<Breaking> first_;
};

}  // namespace pipelag
