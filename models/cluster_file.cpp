// Cluster files: JSON in, with file and place named for whatever is wrong. Knows nothing of flows.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "models/cluster.h"
#include "models/error.h"
#include "models/json_file.h"

namespace pipelag {
namespace {

using Json = nlohmann::json;

[[noreturn]] void Fail(const std::string& path, const std::string& what) {
  throw Error(fmt::format("{}: {}", path, what));
}

void CheckObject(const Json& value, const std::string& path,
                 const std::vector<std::string_view>& known) {
  const std::string place = path.empty() ? "/" : path;
  if (!value.is_object()) Fail(place, fmt::format("expected an object, not {}", ShowJson(value)));
  CheckKeys(value, known, path);
}

const std::string& Text(const Json& value, const std::string& path) {
  if (!value.is_string()) Fail(path, fmt::format("expected a text, not {}", ShowJson(value)));
  return value.get_ref<const std::string&>();
}

/// The text at `key`, which must be there unless `otherwise` is given.
std::string TextAt(const Json& object, const std::string& path, const char* key,
                   std::optional<std::string> otherwise = std::nullopt) {
  const auto value = object.find(key);
  const std::string place = fmt::format("{}/{}", path, key);
  if (value != object.end()) return Text(*value, place);
  if (!otherwise) Fail(place, "is missing");
  return *otherwise;
}

/// The list at `key`; empty if it is not there.
const Json& ListAt(const Json& object, const std::string& path, const char* key) {
  static const Json kEmpty = Json::array();
  const auto value = object.find(key);
  if (value == object.end()) return kEmpty;
  if (!value->is_array()) {
    Fail(fmt::format("{}/{}", path, key), fmt::format("expected a list, not {}", ShowJson(*value)));
  }
  return *value;
}

class Reader {
 public:
  explicit Reader(const Json& root) : root_(root) {}

  ClusterParts Read() {
    CheckObject(root_, "", {"name", "gpus", "nodes", "switches", "links", "ranks"});
    parts_.name = TextAt(root_, "", "name", "");
    AddDevices(root_, "", "gpus", Device::Kind::kGpu, -1);
    const Json& nodes = ListAt(root_, "", "nodes");
    for (size_t n = 0; n < nodes.size(); ++n) {
      const std::string path = fmt::format("/nodes/{}", n);
      CheckObject(nodes[n], path, {"name", "gpus"});
      const int node = Add(TextAt(nodes[n], path, "name"), path + "/name", Device::Kind::kNode, -1);
      AddDevices(nodes[n], path, "gpus", Device::Kind::kGpu, node);
    }
    AddDevices(root_, "", "switches", Device::Kind::kSwitch, -1);
    const Json& links = ListAt(root_, "", "links");
    for (size_t l = 0; l < links.size(); ++l) AddLink(links[l], fmt::format("/links/{}", l));
    const Json& ranks = ListAt(root_, "", "ranks");
    for (size_t r = 0; r < ranks.size(); ++r) {
      const std::string path = fmt::format("/ranks/{}", r);
      parts_.ranks.push_back(Find(Text(ranks[r], path), path));
    }
    if (root_.contains("ranks") && ranks.empty()) Fail("/ranks", "places no rank");
    return std::move(parts_);
  }

 private:
  int Add(const std::string& name, const std::string& path, Device::Kind kind, int node) {
    const auto index = static_cast<int>(parts_.devices.size());
    const auto [before, fresh] = index_.try_emplace(name, index, path);
    if (!fresh) {
      Fail(path, fmt::format("'{}' is already the name of {}", name, before->second.second));
    }
    parts_.devices.push_back({name, kind, node});
    return index;
  }

  void AddDevices(const Json& object, const std::string& path, const char* key, Device::Kind kind,
                  int node) {
    const Json& names = ListAt(object, path, key);
    for (size_t i = 0; i < names.size(); ++i) {
      const std::string place = fmt::format("{}/{}/{}", path, key, i);
      Add(Text(names[i], place), place, kind, node);
    }
  }

  int Find(const std::string& name, const std::string& path) const {
    const auto found = index_.find(name);
    if (found == index_.end()) {
      Fail(path, fmt::format("there is no GPU, node or switch called '{}'", name));
    }
    return found->second.first;
  }

  void AddLink(const Json& json, const std::string& path) {
    CheckObject(json, path, {"from", "to", "bandwidth", "latency", "duplex"});
    Link link;
    link.from = Find(TextAt(json, path, "from"), path + "/from");
    link.to = Find(TextAt(json, path, "to"), path + "/to");
    const auto quantity = [&](const char* key, auto parse, std::optional<std::string> otherwise) {
      const std::string text = TextAt(json, path, key, std::move(otherwise));
      try {
        return parse(text);
      } catch (const Error& error) {
        Fail(fmt::format("{}/{}", path, key), error.what());
      }
    };
    link.spec.bandwidth = quantity("bandwidth", ParseBandwidth, std::nullopt);
    link.spec.latency = quantity("latency", ParseDuration, "0");
    const std::string duplex = TextAt(json, path, "duplex", "full");
    if (duplex != "full" && duplex != "half") {
      Fail(path + "/duplex", fmt::format("must be full or half, not '{}'", duplex));
    }
    link.spec.full_duplex = duplex == "full";
    parts_.links.push_back(link);
  }

  const Json& root_;
  ClusterParts parts_;
  std::map<std::string, std::pair<int, std::string>> index_;  ///< device and where it was named
};

}  // namespace

Cluster ReadCluster(const std::filesystem::path& file) {
  const Json root = ReadJson(file);
  try {
    return Cluster(Reader(root).Read());
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", file.string(), error.what()));
  }
}

}  // namespace pipelag
