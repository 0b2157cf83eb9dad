// Why a run took as long as it did, as JSON and as text. Must not know where the figures come from.
#include "tools/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/table.h"

namespace pipelag {
namespace {

using Json = nlohmann::ordered_json;

/// "warm-up" → "warm_up_ns".
std::string KeyOf(std::string_view name) {
  std::string key(name);
  std::replace(key.begin(), key.end(), '-', '_');
  return key + "_ns";
}

std::string IdleTable(const std::string& of, const std::vector<std::string>& names,
                      const std::vector<IdleShares>& all) {
  std::vector<std::vector<std::string>> rows = {{of, "idle"}};
  std::vector<NamedShare> present;
  for (const NamedShare& named : NamedShares()) {
    const bool any = std::any_of(all.begin(), all.end(), [&](const IdleShares& shares) {
      return (shares.*named.share).count() != 0;
    });
    if (!any) continue;
    present.push_back(named);
    rows[0].emplace_back(named.name);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<std::string>& row = rows.emplace_back();
    row = {names[i], FormatDuration(all[i].Total())};
    for (const NamedShare& named : present) row.push_back(FormatDuration(all[i].*named.share));
  }
  return FormatTable(rows);
}

}  // namespace

Json IdleJson(const std::vector<IdleShares>& ranks) {
  Json rows = Json::array();
  for (size_t r = 0; r < ranks.size(); ++r) {
    Json row = {{"rank", r}};
    for (const NamedShare& named : NamedShares()) {
      row[KeyOf(named.name)] = (ranks[r].*named.share).count();
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string IdleText(const std::vector<IdleShares>& ranks) {
  std::vector<std::string> names;
  for (size_t r = 0; r < ranks.size(); ++r) names.push_back(fmt::format("{}", r));
  return "why idle\n" + IdleTable("rank", names, ranks);
}

std::string IdleSideBySide(
    const std::vector<std::pair<std::string, const std::vector<IdleShares>*>>& schedules) {
  std::vector<std::string> names;
  std::vector<IdleShares> sums;
  for (const auto& [name, ranks] : schedules) {
    names.push_back(name);
    sums.emplace_back();
    for (const IdleShares& shares : *ranks) sums.back() += shares;
  }
  return "why idle, over all ranks\n" + IdleTable("schedule", names, sums);
}

Json PathJson(const CriticalPath& path) {
  Json json;
  for (size_t work = 0; work < path.by_work.size(); ++work) {
    json[PathWorkName(static_cast<PathWork>(work)) + "_ns"] = path.by_work[work].count();
  }
  Json& of_ranks = json["compute_of_ranks_ns"] = Json::array();
  for (const Nanoseconds time : path.by_rank) of_ranks.push_back(time.count());
  return json;
}

std::string PathText(const CriticalPath& path) {
  std::string text;
  for (size_t work = 0; work < path.by_work.size(); ++work) {
    if (path.by_work[work].count() == 0) continue;
    text +=
        fmt::format("{}{} {}", text.empty() ? "critical path: " : ", ",
                    PathWorkName(static_cast<PathWork>(work)), FormatDuration(path.by_work[work]));
  }
  return text + '\n';
}

Json MemoryJson(const std::vector<RankMemory>& ranks) {
  Json rows = Json::array();
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankMemory& rank = ranks[r];
    rows.push_back({{"rank", r},
                    {"weights_bytes", rank.standing.weights},
                    {"stash_bytes", rank.standing.stash},
                    {"gradients_bytes", rank.standing.gradients},
                    {"optimizer_bytes", rank.standing.optimizer},
                    {"transfer_buffers_bytes", rank.standing.transfer_buffers},
                    {"workspace_bytes", rank.standing.workspace},
                    {"peak_activations_bytes", rank.peak_activations},
                    {"peak_bytes", rank.peak},
                    {"peak_time_ns", rank.peak_time.count()}});
  }
  return rows;
}

std::string MemoryText(const std::vector<RankMemory>& ranks) {
  std::vector<std::vector<std::string>> rows = {{"rank", "peak memory", "at", "weights", "stash",
                                                 "gradients", "optimizer", "buffers",
                                                 "activations"}};
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankMemory& rank = ranks[r];
    rows.push_back({fmt::format("{}", r), FormatBytes(rank.peak), FormatDuration(rank.peak_time),
                    FormatBytes(rank.standing.weights), FormatBytes(rank.standing.stash),
                    FormatBytes(rank.standing.gradients), FormatBytes(rank.standing.optimizer),
                    FormatBytes(rank.standing.transfer_buffers),
                    FormatBytes(rank.peak_activations)});
  }
  return FormatTable(rows);
}

}  // namespace pipelag
