// Checks of a cluster's graph and the ways through it. Knows nothing of flows or of time passing.
#include "models/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/connected_components.hpp>
#include <boost/graph/dijkstra_shortest_paths.hpp>
#include <limits>
#include <map>
#include <utility>

#include "models/error.h"

namespace pipelag {
namespace {

using Graph =
    boost::adjacency_list<boost::vecS, boost::vecS, boost::undirectedS, boost::no_property,
                          boost::property<boost::edge_index_t, size_t>>;
/// Latency in ns, then links.
using Distance = std::pair<int64_t, int64_t>;
constexpr int64_t kFar = std::numeric_limits<int64_t>::max();

Distance Further(const Distance& a, const Distance& b) {
  int64_t latency = 0;
  if (a.first == kFar || __builtin_add_overflow(a.first, b.first, &latency)) return {kFar, kFar};
  return {latency, a.second + b.second};
}

[[noreturn]] void Fail(const std::string& path, const std::string& what) {
  throw Error(fmt::format("{}: {}", path, what));
}

void CheckDevices(const ClusterParts& parts) {
  std::map<std::string_view, size_t> known;
  for (size_t d = 0; d < parts.devices.size(); ++d) {
    const Device& device = parts.devices[d];
    if (!known.try_emplace(device.name, d).second) {
      Fail("/", fmt::format("two devices are called '{}'", device.name));
    }
    const auto devices = static_cast<int>(parts.devices.size());
    CHECK(device.node < devices);
    CHECK(device.node < 0 ||
          parts.devices[static_cast<size_t>(device.node)].kind == Device::Kind::kNode);
  }
}

void CheckLinks(const ClusterParts& parts) {
  const auto devices = static_cast<int>(parts.devices.size());
  for (size_t l = 0; l < parts.links.size(); ++l) {
    const Link& link = parts.links[l];
    const std::string path = fmt::format("/links/{}", l);
    for (const int end : {link.from, link.to}) {
      if (end < 0 || end >= devices) Fail(path, fmt::format("there is no device {}", end));
    }
    if (link.from == link.to) {
      Fail(path, fmt::format("joins '{}' with itself",
                             parts.devices[static_cast<size_t>(link.from)].name));
    }
    if (link.spec.bandwidth.bytes_per_second < 0) {
      Fail(path + "/bandwidth", fmt::format("must not be negative, but is {} bytes/s",
                                            link.spec.bandwidth.bytes_per_second));
    }
    if (link.spec.latency.count() < 0) {
      Fail(path + "/latency",
           fmt::format("must not be negative, but is {} ns", link.spec.latency.count()));
    }
  }
}

void CheckRanks(const ClusterParts& parts) {
  std::map<int, size_t> holders;
  for (size_t r = 0; r < parts.ranks.size(); ++r) {
    const std::string path = fmt::format("/ranks/{}", r);
    const int device = parts.ranks[r];
    if (device < 0 || device >= static_cast<int>(parts.devices.size())) {
      Fail(path, fmt::format("there is no device {}", device));
    }
    const Device& gpu = parts.devices[static_cast<size_t>(device)];
    if (gpu.kind != Device::Kind::kGpu) Fail(path, fmt::format("'{}' is not a GPU", gpu.name));
    const auto [holder, fresh] = holders.try_emplace(device, r);
    if (!fresh) Fail(path, fmt::format("'{}' already holds rank {}", gpu.name, holder->second));
  }
  if (parts.ranks.empty()) Fail("/gpus", "the cluster has no GPU");
}

}  // namespace

struct Cluster::Topology {
  Graph graph;
  std::vector<Distance> weights;  ///< per link

  explicit Topology(const ClusterParts& parts) : graph(parts.devices.size()) {
    for (size_t l = 0; l < parts.links.size(); ++l) {
      const Link& link = parts.links[l];
      boost::add_edge(static_cast<size_t>(link.from), static_cast<size_t>(link.to), l, graph);
      weights.emplace_back(link.spec.latency.count(), 1);
    }
  }

  size_t LinkOf(const Graph::edge_descriptor& edge) const {
    return boost::get(boost::edge_index, graph, edge);
  }

  /// A node that no link names is a mere label of its GPUs and need not be reached.
  void CheckConnected(const ClusterParts& parts) const {
    std::vector<size_t> component(parts.devices.size());
    boost::connected_components(graph, component.data());
    const auto first = static_cast<size_t>(parts.ranks.front());
    for (size_t d = 0; d < parts.devices.size(); ++d) {
      if (component[d] == component[first]) continue;
      if (parts.devices[d].kind == Device::Kind::kNode && boost::degree(d, graph) == 0) continue;
      Fail("/links", fmt::format("no way leads from '{}' to '{}'", parts.devices[first].name,
                                 parts.devices[d].name));
    }
  }

  std::vector<Distance> DistancesTo(size_t target) const {
    std::vector<Distance> distances(boost::num_vertices(graph));
    boost::dijkstra_shortest_paths(graph, target,
                                   boost::distance_map(distances.data())
                                       .weight_map(boost::make_iterator_property_map(
                                           weights.begin(), boost::get(boost::edge_index, graph)))
                                       .distance_compare(std::less<Distance>())
                                       .distance_combine(&Further)
                                       .distance_inf(Distance{kFar, kFar})
                                       .distance_zero(Distance{0, 0}));
    return distances;
  }
};

Cluster::Cluster(ClusterParts parts) : parts_(std::move(parts)) {
  if (parts_.ranks.empty()) {
    for (size_t d = 0; d < parts_.devices.size(); ++d) {
      if (parts_.devices[d].kind == Device::Kind::kGpu) {
        parts_.ranks.push_back(static_cast<int>(d));
      }
    }
  }
  CheckDevices(parts_);
  CheckLinks(parts_);
  CheckRanks(parts_);
  topology_ = std::make_shared<const Topology>(parts_);
  topology_->CheckConnected(parts_);
  for (const Link& link : parts_.links) channels_.insert(channels_.end(), 2, link.spec.bandwidth);
}

Route Cluster::RouteBetween(int sender, int receiver) const {
  CHECK(sender >= 0 && sender < ranks() && receiver >= 0 && receiver < ranks());
  auto at = static_cast<size_t>(parts_.ranks[static_cast<size_t>(sender)]);
  const auto target = static_cast<size_t>(parts_.ranks[static_cast<size_t>(receiver)]);
  const std::vector<Distance> distances = topology_->DistancesTo(target);
  if (distances[at].first == kFar) {
    throw Error(
        fmt::format("the latency between rank {} and rank {} adds up to more than 292 years",
                    sender, receiver));
  }
  Route route;
  route.latency = Nanoseconds{distances[at].first};
  route.hops = static_cast<int>(distances[at].second);
  while (at != target) {
    std::pair best{std::numeric_limits<size_t>::max(), std::numeric_limits<size_t>::max()};
    const auto [begin, end] = boost::out_edges(at, topology_->graph);
    for (auto edge = begin; edge != end; ++edge) {
      const size_t next = boost::target(*edge, topology_->graph);
      const size_t link = topology_->LinkOf(*edge);
      if (Further(distances[next], topology_->weights[link]) != distances[at]) continue;
      best = std::min(best, std::pair(next, link));
    }
    const auto& [next, index] = best;
    const Link& link = parts_.links[index];
    if (link.spec.bandwidth.bytes_per_second > 0) {
      const bool back = link.spec.full_duplex && static_cast<size_t>(link.from) != at;
      route.channels.push_back(static_cast<int>(2 * index) + (back ? 1 : 0));
    }
    at = next;
  }
  return route;
}

int Cluster::NodeOf(int rank) const {
  const int device = parts_.ranks[static_cast<size_t>(rank)];
  const int node = parts_.devices[static_cast<size_t>(device)].node;
  return node >= 0 ? node : device;
}

}  // namespace pipelag
