// The machines of a run: GPUs, nodes and switches joined by links, where the ranks stand, and the
// way a message takes between two of them. Knows what a link is and nothing of flows or of time
// passing.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "models/units.h"

namespace pipelag {

/// Anything that links join. All of them forward what is not for them.
struct Device {
  enum class Kind : uint8_t { kGpu, kNode, kSwitch };
  std::string name;
  Kind kind = Kind::kGpu;
  int node = -1;  ///< of a GPU: index of its node's device; -1: the GPU is a node of its own
};

struct LinkSpec {
  Bandwidth bandwidth;  ///< per direction; of a half-duplex link of both together
  Nanoseconds latency{0};
  bool full_duplex = true;
};

struct Link {
  int from = 0;  ///< indices of devices; the two ends are alike
  int to = 0;
  LinkSpec spec;
};

struct ClusterParts {
  std::string name;
  std::vector<Device> devices;
  std::vector<Link> links;
  std::vector<int> ranks;  ///< device of each rank; empty: the GPUs in order
};

/// The way of a message. Channel 2·l is link l from its `from` to its `to`, 2·l + 1 the other
/// direction; a half-duplex link has channel 2·l only.
struct Route {
  std::vector<int> channels;  ///< only those of limited bandwidth, in order of travel
  Nanoseconds latency{0};     ///< summed over all links
  int hops = 0;
};

class Cluster {
 public:
  /// Throws Error ("/links/3: …") for ends that do not exist, links from a device to itself,
  /// negative figures, two devices of one name, a graph that does not hang together, and ranks on
  /// what is not a GPU or on the same one.
  explicit Cluster(ClusterParts parts);

  const ClusterParts& parts() const { return parts_; }
  const std::string& name() const { return parts_.name; }
  int ranks() const { return static_cast<int>(parts_.ranks.size()); }
  /// Bandwidth of each channel.
  const std::vector<Bandwidth>& channels() const { return channels_; }
  /// Least latency, then fewest links, then the least sequence of device indices, then of link
  /// indices: the first of parallel links carries everything. Empty for a rank to itself.
  Route RouteBetween(int sender, int receiver) const;
  /// Two ranks on GPUs of one node have the same.
  int NodeOf(int rank) const;

 private:
  struct Topology;

  ClusterParts parts_;
  std::vector<Bandwidth> channels_;
  std::shared_ptr<const Topology> topology_;
};

/// GPU i joined with i + 1.
Cluster LineCluster(int gpus, const LinkSpec& link);
/// A line whose ends are joined as well.
Cluster RingCluster(int gpus, const LinkSpec& link);
/// A link for each pair of GPUs.
Cluster FullCluster(int gpus, const LinkSpec& link);

/// Nodes of GPUs around a switch, as with NVLink; the nodes' network cards around one more switch.
/// The `nics` cards of a node are shared evenly among its GPUs. Latencies are from GPU to GPU,
/// rounded up to an even number; the cards' may not be below that inside a node, since messages
/// take the way of least latency.
struct NodesSpec {
  int nodes = 1;
  int gpus = 8;  ///< per node
  int nics = 1;  ///< per node
  LinkSpec nvlink;
  LinkSpec nic;
};
Cluster NodesCluster(const NodesSpec& spec);

/// Cluster file: JSON object with
///   "name"?; "gpus"?: names; "switches"?: names; "nodes"?: [{"name", "gpus": names}];
///   "links": [{"from", "to", "bandwidth": "25GB/s", "latency"?: "5us", "duplex"?: "full" |
///   "half"}]; "ranks"?: names of GPUs, in the order of the ranks they hold.
/// Throws Error with file and JSON path.
Cluster ReadCluster(const std::filesystem::path& file);

}  // namespace pipelag
