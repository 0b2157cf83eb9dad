// Why a run took as long as it did, as JSON and as text: idle time by its causes, the critical
// path, memory. Must not know where the figures come from.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "traces/critical_path.h"
#include "traces/idle.h"
#include "traces/memory.h"

namespace pipelag {

/// A row per rank: "warm_up_ns", …
nlohmann::ordered_json IdleJson(const std::vector<IdleShares>& ranks);
/// A row per rank, a column per cause that there is.
std::string IdleText(const std::vector<IdleShares>& ranks);

/// A row per schedule with the sums over its ranks, a column per cause that there is.
std::string IdleSideBySide(
    const std::vector<std::pair<std::string, const std::vector<IdleShares>*>>& schedules);

/// "compute_ns", … and "compute_of_ranks_ns".
nlohmann::ordered_json PathJson(const CriticalPath& path);
/// One line.
std::string PathText(const CriticalPath& path);

/// A row per rank: where its memory goes at the peak, and when that is.
nlohmann::ordered_json MemoryJson(const std::vector<RankMemory>& ranks);
std::string MemoryText(const std::vector<RankMemory>& ranks);

}  // namespace pipelag
