// Clusters: routes, shapes, and the place named for everything that can be wrong with a file.
#include "models/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/error.h"
#include "models/file.h"
#include "tests/scratch.h"

namespace pipelag {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr LinkSpec kLink{{1'000'000'000}, Nanoseconds{100}, true};

std::string ErrorOf(const std::string& json) {
  const std::filesystem::path file = Scratch("cluster.json");
  WriteFile(file, json);
  try {
    ReadCluster(file);
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_THAT(message, HasSubstr(file.string() + ": "));
    return message.substr(file.string().size() + 2);
  }
  return "no error";
}

TEST(Cluster, RoutesFollowLeastLatencyThenFewestLinksThenOrder) {
  const Cluster ring = RingCluster(5, kLink);
  EXPECT_THAT(ring.RouteBetween(0, 2).channels, ElementsAre(0, 2));
  EXPECT_THAT(ring.RouteBetween(2, 0).channels, ElementsAre(3, 1));
  EXPECT_THAT(ring.RouteBetween(0, 4).channels, ElementsAre(9));
  EXPECT_EQ(ring.RouteBetween(0, 3).latency.count(), 200);
  EXPECT_EQ(ring.RouteBetween(3, 3).hops, 0);
  // Two ways of equal length around an even ring: the one over the lower number, both ways back.
  const Cluster even = RingCluster(4, kLink);
  EXPECT_THAT(even.RouteBetween(0, 2).channels, ElementsAre(0, 2));
  EXPECT_THAT(even.RouteBetween(2, 0).channels, ElementsAre(3, 1));
  // A slow direct link loses against two quick ones.
  ClusterParts parts = FullCluster(3, kLink).parts();
  parts.links[1].spec.latency = Nanoseconds{201};
  EXPECT_THAT(Cluster(parts).RouteBetween(0, 2).channels, ElementsAre(0, 4));
  parts.links[1].spec.latency = Nanoseconds{200};
  EXPECT_THAT(Cluster(parts).RouteBetween(0, 2).channels, ElementsAre(2));
}

TEST(Cluster, HalfDuplexIsOneChannelAndUnlimitedLinksAreNone) {
  const Cluster half = LineCluster(2, {{1000}, Nanoseconds{5}, false});
  EXPECT_THAT(half.RouteBetween(0, 1).channels, ElementsAre(0));
  EXPECT_THAT(half.RouteBetween(1, 0).channels, ElementsAre(0));
  const Cluster unlimited = LineCluster(2, {{}, Nanoseconds{5}, true});
  EXPECT_TRUE(unlimited.RouteBetween(0, 1).channels.empty());
  EXPECT_EQ(unlimited.RouteBetween(0, 1).latency.count(), 5);
}

TEST(Cluster, NodesShareTheirCards) {
  const Cluster nodes = NodesCluster({.nodes = 2,
                                      .gpus = 4,
                                      .nics = 2,
                                      .nvlink = {{450'000'000'000}, Nanoseconds{2001}, true},
                                      .nic = {{50'000'000'000}, Nanoseconds{5000}, true}});
  EXPECT_EQ(nodes.ranks(), 8);
  EXPECT_EQ(nodes.RouteBetween(0, 3).latency.count(), 2002);
  EXPECT_EQ(nodes.RouteBetween(0, 3).hops, 2);
  EXPECT_EQ(nodes.RouteBetween(1, 4).latency.count(), 5000);
  EXPECT_EQ(nodes.RouteBetween(1, 4).hops, 4);
  EXPECT_EQ(nodes.NodeOf(0), nodes.NodeOf(3));
  EXPECT_NE(nodes.NodeOf(3), nodes.NodeOf(4));
  // GPUs 0 and 1 leave by one card, 2 and 3 by the other.
  const auto port = [&](int from) { return nodes.RouteBetween(from, 4).channels[1]; };
  EXPECT_EQ(port(0), port(1));
  EXPECT_EQ(port(2), port(3));
  EXPECT_NE(port(0), port(2));
  EXPECT_THROW(
      NodesCluster(
          {.nodes = 2, .nvlink = {{1}, Nanoseconds{9}, true}, .nic = {{1}, Nanoseconds{8}, true}}),
      Error);
}

TEST(Cluster, FileIsRead) {
  const std::filesystem::path file = Scratch("good.json");
  WriteFile(file, R"({"name": "two", "gpus": ["a"], "nodes": [{"name": "n", "gpus": ["b"]}],
    "switches": ["s"], "ranks": ["b", "a"], "links": [
    {"from": "a", "to": "s", "bandwidth": "25GB/s", "latency": "5us"},
    {"from": "b", "to": "s", "bandwidth": "10GB/s", "duplex": "half"}]})");
  const Cluster cluster = ReadCluster(file);
  EXPECT_EQ(cluster.name(), "two");
  EXPECT_EQ(cluster.ranks(), 2);
  const Route route = cluster.RouteBetween(0, 1);
  EXPECT_THAT(route.channels, ElementsAre(2, 1));
  EXPECT_EQ(route.latency.count(), 5000);
  EXPECT_EQ(cluster.channels()[2].bytes_per_second, 10'000'000'000);
}

TEST(Cluster, ErrorsNameFileAndPlace) {
  const std::string two = R"("gpus": ["a", "b"], "links": )";
  EXPECT_EQ(ErrorOf("{" + two + R"([{"from": "a", "to": "c", "bandwidth": "1GB/s"}]})"),
            "/links/0/to: there is no GPU, node or switch called 'c'");
  EXPECT_THAT(ErrorOf("{" + two + R"([{"from": "a", "to": "b", "bandwidth": "-1GB/s"}]})"),
              HasSubstr("/links/0/bandwidth: '-1GB/s' is not a bandwidth: it is negative"));
  EXPECT_THAT(ErrorOf("{" + two + R"([{"from": "a", "to": "b", "bandwidth": "0GB/s"}]})"),
              HasSubstr("/links/0/bandwidth: '0GB/s' is not a bandwidth: it is zero"));
  EXPECT_EQ(ErrorOf("{" + two + R"([{"from": "a", "to": "b"}]})"),
            "/links/0/bandwidth: is missing");
  EXPECT_EQ(ErrorOf("{" + two + "[]}"), "/links: no way leads from 'a' to 'b'");
  EXPECT_EQ(ErrorOf("{" + two + R"([{"from": "a", "to": "a", "bandwidth": "1GB/s"}]})"),
            "/links/0: joins 'a' with itself");
  EXPECT_EQ(ErrorOf(R"({"gpus": ["a"], "switches": ["a"]})"),
            "/switches/0: 'a' is already the name of /gpus/0");
  EXPECT_EQ(ErrorOf(R"({"gpus": ["a"], "ranks": ["b"]})"),
            "/ranks/0: there is no GPU, node or switch called 'b'");
  EXPECT_EQ(ErrorOf(R"({"gpus": ["a"], "ranks": ["a", "a"]})"),
            "/ranks/1: 'a' already holds rank 0");
  EXPECT_EQ(ErrorOf(R"({"nodes": [{"name": "n", "gpus": ["a"]}], "ranks": ["n"]})"),
            "/ranks/0: 'n' is not a GPU");
  EXPECT_EQ(ErrorOf("{}"), "/gpus: the cluster has no GPU");
  EXPECT_THAT(ErrorOf(R"({"gpu": []})"), HasSubstr("/gpu: unknown key"));
  EXPECT_EQ(ErrorOf(R"({"gpus": [1]})"), "/gpus/0: expected a text, not 1");
  EXPECT_EQ(ErrorOf("[]"), "/: expected an object, not a list");
  EXPECT_THAT(ErrorOf("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(ErrorOf("{" + two + R"([{"from": "a", "to": "b", "bandwidth": "1GB/s",
                                        "duplex": "both"}]})"),
              HasSubstr("/links/0/duplex: must be full or half, not 'both'"));
}

}  // namespace
}  // namespace pipelag
