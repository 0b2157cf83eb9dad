// The known schedules by name. A generator is a pure function from sizes to a Schedule; a new one is
// one file and one line in the table of generators.cpp.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "models/schedule/schedule.h"

namespace pipelag {

struct GeneratorOptions {
  int ranks = 1;
  int microbatches = 1;  ///< m, per update
  int warmup_slope = 1;  ///< warm-up forwards of stage s: slope · (p − 1 − s), capped by m at a flush
  bool reduction = false;  ///< an AR per stage before its U (data-parallel replicas)
  bool norm = false;       ///< one AR over all stages before every U (global-norm clipping)
  bool barrier = false;    ///< a global flush barrier before every U
  /// Place of U in `2bw`: early, directly after the batch's last B; late, directly before the first F
  /// of batch t + 2. Default: late where an AR would stall the lane, else early.
  std::optional<bool> late_update = std::nullopt;
};

struct Generator {
  std::string_view name;
  std::string_view summary;  ///< one line for `list`
  Schedule (*generate)(const GeneratorOptions&);
};

std::span<const Generator> Generators();

/// Throws Error for an unknown name (naming the nearest known one) or options that a schedule cannot
/// honour.
Schedule Generate(std::string_view name, const GeneratorOptions& options);

Schedule GenerateGpipe(const GeneratorOptions& options);
Schedule Generate1F1B(const GeneratorOptions& options);
Schedule GeneratePipeDream(const GeneratorOptions& options);
Schedule Generate2BW(const GeneratorOptions& options);

}  // namespace pipelag
