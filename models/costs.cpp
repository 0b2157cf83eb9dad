// Cost files and look-ups in Costs. Knows no clocks and no schedule.
#include "models/costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "models/error.h"
#include "models/file.h"
#include "models/json_file.h"

namespace pipelag {
namespace {

using Json = nlohmann::json;

/// The top level of a cost file, read key by key; whatever is wrong names the file and the place.
class CostFile {
 public:
  CostFile(const std::filesystem::path& file, const Json& root)
      : name_(file.string()), root_(root) {}

  [[noreturn]] void Fail(std::string_view path, const std::string& what) const {
    throw Error(fmt::format("{}: {}: {}", name_, path, what));
  }

  /// A whole number ≥ 0 of `unit`; 0 if the key is not there.
  int64_t Number(const char* key, std::string_view unit) const {
    const auto value = root_.find(key);
    return value == root_.end() ? 0 : Whole(*value, fmt::format("/{}", key), unit);
  }

  /// Empty if the key is not there.
  std::vector<Nanoseconds> Times(const char* key) const {
    std::vector<Nanoseconds> times;
    const auto list = root_.find(key);
    if (list == root_.end()) return times;
    const std::string path = fmt::format("/{}", key);
    if (!list->is_array()) {
      Fail(path, fmt::format("expected a list of times, one per stage, not {}", ShowJson(*list)));
    }
    for (size_t s = 0; s < list->size(); ++s) {
      times.emplace_back(Whole((*list)[s], fmt::format("{}/{}", path, s), "nanoseconds"));
    }
    return times;
  }

  std::string Text(const char* key) const {
    const auto value = root_.find(key);
    if (value == root_.end()) return "";
    if (!value->is_string()) {
      Fail(fmt::format("/{}", key), fmt::format("expected a text, not {}", ShowJson(*value)));
    }
    return value->get<std::string>();
  }

 private:
  int64_t Whole(const Json& value, const std::string& path, std::string_view unit) const {
    if (!value.is_number_integer()) {
      Fail(path, fmt::format("expected a whole number of {}, not {}", unit, ShowJson(value)));
    }
    if (value.is_number_unsigned() &&
        value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
      Fail(path, fmt::format("{} is too large a number", ShowJson(value)));
    }
    const auto number = value.get<int64_t>();
    if (number < 0) Fail(path, fmt::format("must not be negative, but is {}", number));
    return number;
  }

  std::string name_;
  const Json& root_;
};

void CheckLengths(const CostFile& file, const Costs& costs) {
  const auto check = [&](std::string_view path, const std::vector<Nanoseconds>& times) {
    if (!times.empty() && times.size() != costs.forward.size()) {
      file.Fail(path, fmt::format("has {} entries, but /forward_ns has {}", times.size(),
                                  costs.forward.size()));
    }
  };
  if (costs.forward.empty()) file.Fail("/forward_ns", "expected one time per stage, found none");
  check("/backward_ns", costs.backward);
  check("/backward_input_ns", costs.backward_input);
  check("/backward_weight_ns", costs.backward_weight);
  check("/update_ns", costs.update);
  check("/overlap_ns", costs.overlap);
  const bool input = !costs.backward_input.empty();
  const bool weight = !costs.backward_weight.empty();
  if (input != weight) {
    file.Fail(input ? "/backward_weight_ns" : "/backward_input_ns",
              "is missing: the two halves of a split backward come together");
  }
  if (costs.backward.empty() && !input) {
    file.Fail("/backward_ns", "is missing, and so are /backward_input_ns and /backward_weight_ns");
  }
}

Json TimesOf(const std::vector<Nanoseconds>& times) {
  Json list = Json::array();
  for (const Nanoseconds time : times) list.push_back(time.count());
  return list;
}

}  // namespace

Nanoseconds Costs::Of(ActionKind kind, int stage) const {
  const auto look_up = [&](const std::vector<Nanoseconds>& times, std::string_view flag) {
    CHECK(stage >= 0 && stage < stages());
    if (times.empty()) {
      throw Error(fmt::format("the schedule needs the time of {}, but {} is not given",
                              KindName(kind), flag));
    }
    return times.at(static_cast<size_t>(stage));
  };
  switch (kind) {
    case ActionKind::kForward:
      return look_up(forward, "--forward");
    case ActionKind::kBackward:
      if (backward.empty() && !backward_input.empty()) {
        int64_t both = 0;
        if (__builtin_add_overflow(look_up(backward_input, "--backward-input").count(),
                                   look_up(backward_weight, "--backward-weight").count(), &both)) {
          throw Error(fmt::format("the backward of stage {} takes longer than 292 years", stage));
        }
        return Nanoseconds{both};
      }
      return look_up(backward, "--backward");
    case ActionKind::kBackwardInput:
      return look_up(backward_input, "--backward-input");
    case ActionKind::kBackwardWeight:
      return look_up(backward_weight, "--backward-weight");
    case ActionKind::kUpdate:
      return look_up(update, "--update");
    case ActionKind::kAllReduce:
    case ActionKind::kSendForward:
    case ActionKind::kReceiveForward:
    case ActionKind::kSendBackward:
    case ActionKind::kReceiveBackward:
      break;
  }
  CheckFailed(__FILE__, __LINE__, "the kind is one of the compute lane");
}

std::vector<Nanoseconds> PerStage(const std::vector<Nanoseconds>& times, int stages,
                                  const std::string& flag) {
  CHECK(stages > 0);
  const auto wanted = static_cast<size_t>(stages);
  if (times.size() == wanted) return times;
  if (times.size() != 1) {
    throw Error(fmt::format("{} has {} entries: give one for all stages, or one for each of the {}",
                            flag, times.size(), stages));
  }
  return std::vector<Nanoseconds>(wanted, times.front());
}

Costs ReadCosts(const std::filesystem::path& file) {
  const Json root = ReadJson(file);
  if (!root.is_object()) throw Error(fmt::format("{}: expected a JSON object", file.string()));
  const CostFile content(file, root);
  CheckKeys(
      root,
      {"forward_ns", "backward_ns", "backward_input_ns", "backward_weight_ns", "update_ns",
       "overlap_ns", "activation_bytes", "p2p_latency_ns", "p2p_bandwidth_bytes_per_s", "source"},
      file.string() + ": ");
  Costs costs;
  costs.forward = content.Times("forward_ns");
  costs.backward = content.Times("backward_ns");
  costs.backward_input = content.Times("backward_input_ns");
  costs.backward_weight = content.Times("backward_weight_ns");
  costs.update = content.Times("update_ns");
  costs.overlap = content.Times("overlap_ns");
  costs.activation_bytes = content.Number("activation_bytes", "bytes");
  costs.p2p_latency = Nanoseconds{content.Number("p2p_latency_ns", "nanoseconds")};
  costs.p2p_bandwidth = Bandwidth{content.Number("p2p_bandwidth_bytes_per_s", "bytes per second")};
  costs.source = content.Text("source");
  CheckLengths(content, costs);
  if (costs.update.empty()) costs.update.assign(costs.forward.size(), Nanoseconds{0});
  return costs;
}

void WriteCosts(const Costs& costs, const std::filesystem::path& file) {
  nlohmann::ordered_json root;
  const auto list = [&](const char* key, const std::vector<Nanoseconds>& times) {
    if (!times.empty()) root[key] = TimesOf(times);
  };
  list("forward_ns", costs.forward);
  list("backward_ns", costs.backward);
  list("backward_input_ns", costs.backward_input);
  list("backward_weight_ns", costs.backward_weight);
  list("update_ns", costs.update);
  list("overlap_ns", costs.overlap);
  root["activation_bytes"] = costs.activation_bytes;
  root["p2p_latency_ns"] = costs.p2p_latency.count();
  root["p2p_bandwidth_bytes_per_s"] = costs.p2p_bandwidth.bytes_per_second;
  root["source"] = costs.source;
  WriteFile(file,
            root.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace pipelag
