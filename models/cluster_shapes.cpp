// Clusters of a regular shape, from a few numbers. Knows nothing of flows or of time passing.
#include <fmt/format.h>

#include "models/cluster.h"
#include "models/error.h"

namespace pipelag {
namespace {

void CheckCount(const char* what, int count) {
  if (count < 1) throw Error(fmt::format("a cluster needs at least 1 {}, not {}", what, count));
}

ClusterParts Gpus(std::string name, int gpus) {
  CheckCount("GPU", gpus);
  ClusterParts parts;
  parts.name = std::move(name);
  for (int g = 0; g < gpus; ++g) {
    parts.devices.push_back({.name = fmt::format("gpu{}", g), .kind = Device::Kind::kGpu});
  }
  return parts;
}

LinkSpec HalfWay(LinkSpec link) {
  link.latency = (link.latency + Nanoseconds{1}) / 2;
  return link;
}

}  // namespace

Cluster LineCluster(int gpus, const LinkSpec& link) {
  ClusterParts parts = Gpus("line", gpus);
  for (int g = 0; g + 1 < gpus; ++g) parts.links.push_back({g, g + 1, link});
  return Cluster(std::move(parts));
}

Cluster RingCluster(int gpus, const LinkSpec& link) {
  ClusterParts parts = Gpus("ring", gpus);
  for (int g = 0; g + 1 < gpus; ++g) parts.links.push_back({g, g + 1, link});
  if (gpus > 2) parts.links.push_back({gpus - 1, 0, link});
  return Cluster(std::move(parts));
}

Cluster FullCluster(int gpus, const LinkSpec& link) {
  ClusterParts parts = Gpus("full", gpus);
  for (int a = 0; a < gpus; ++a) {
    for (int b = a + 1; b < gpus; ++b) parts.links.push_back({a, b, link});
  }
  return Cluster(std::move(parts));
}

Cluster NodesCluster(const NodesSpec& spec) {
  CheckCount("node", spec.nodes);
  CheckCount("GPU per node", spec.gpus);
  CheckCount("network card per node", spec.nics);
  if (spec.nodes > 1 && spec.nic.latency < spec.nvlink.latency) {
    throw Error(
        "the latency over the network cards is below that inside a node: messages inside a "
        "node would take the way over a card");
  }
  ClusterParts parts;
  parts.name = fmt::format("{} x {} GPUs", spec.nodes, spec.gpus);
  const auto add = [&](std::string name, Device::Kind kind, int node) {
    parts.devices.push_back({std::move(name), kind, node});
    return static_cast<int>(parts.devices.size()) - 1;
  };
  const LinkSpec nvlink = HalfWay(spec.nvlink);
  const LinkSpec card = HalfWay(spec.nic);
  const LinkSpec port{spec.nic.bandwidth, Nanoseconds{0}, spec.nic.full_duplex};
  const int fabric = spec.nodes > 1 ? add("fabric", Device::Kind::kSwitch, -1) : -1;
  for (int n = 0; n < spec.nodes; ++n) {
    const int node = add(fmt::format("node{}", n), Device::Kind::kNode, -1);
    const int inner = add(fmt::format("node{}/nvswitch", n), Device::Kind::kSwitch, -1);
    const int first_card = static_cast<int>(parts.devices.size());
    for (int c = 0; fabric >= 0 && c < spec.nics; ++c) {
      const int nic = add(fmt::format("node{}/nic{}", n, c), Device::Kind::kSwitch, -1);
      parts.links.push_back({nic, fabric, port});
    }
    for (int g = 0; g < spec.gpus; ++g) {
      const int gpu = add(fmt::format("node{}/gpu{}", n, g), Device::Kind::kGpu, node);
      parts.links.push_back({gpu, inner, nvlink});
      if (fabric >= 0) parts.links.push_back({gpu, first_card + g * spec.nics / spec.gpus, card});
    }
  }
  return Cluster(std::move(parts));
}

}  // namespace pipelag
