// Files of measured layers: what they mean, and what is wrong with wrong ones.
#include "models/profile.h"

#include <gtest/gtest.h>

#include "models/error.h"
#include "models/file.h"
#include "tests/scratch.h"

namespace pipelag {
namespace {

std::filesystem::path Written(const std::string& text) {
  const std::filesystem::path file = Scratch("profile.txt");
  WriteFile(file, text);
  return file;
}

template <class Read>
std::string ErrorOf(const Read& read, const std::string& text) {
  const std::filesystem::path file = Written(text);
  try {
    read(file);
  } catch (const Error& error) {
    return std::string(error.what()).substr(file.string().size());
  }
  return "no error";
}

std::string GraphError(const std::string& text) { return ErrorOf(ReadPipeDreamProfile, text); }
std::string TableError(const std::string& text) { return ErrorOf(ReadLayerTimes, text); }

std::string Node(const std::string& name, const std::string& activation) {
  return name + " -- Linear(in=3, out=4) -- forward_compute_time=1.500, backward_compute_time=" +
         "0.0025, activation_size=" + activation + ", parameter_size=7.000\n";
}

TEST(PipeDreamProfile, IsPutInOneOrderWithWhatPassesEveryCut) {
  // A skip connection from node1 to node4; node10 stands behind node2 by number, not by text.
  const std::string text = Node("node10", "5.0") + Node("node1", "100.000") +
                           Node("node2", "10.0") + Node("node4", "[1.0; 2.0; 3.0]") +
                           "\tnode1 -- node2\n" +
                           "\tnode2 -- node4\n\tnode1 -- node4\n\tnode4 -- node10";
  const std::vector<NetworkPart> parts = ReadPipeDreamProfile(Written(text));
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_EQ(parts[0].name, "node1 Linear(in=3, out=4)");
  EXPECT_EQ(parts[3].name, "node10 Linear(in=3, out=4)");
  EXPECT_EQ(parts[0].forward, Nanoseconds{1'500'000});
  EXPECT_EQ(parts[0].backward, Nanoseconds{2'500});
  EXPECT_EQ(parts[0].memory.weights, 7);
  EXPECT_EQ(parts[2].memory.activation, 6);
  EXPECT_EQ(parts[0].memory.message, 100);
  EXPECT_EQ(parts[1].memory.message, 110);
  EXPECT_EQ(parts[2].memory.message, 6);
  EXPECT_EQ(parts[3].memory.message, 0);
}

TEST(PipeDreamProfile, LeavesOutTheDataLoader) {
  const std::vector<NetworkPart> parts = ReadPipeDreamProfile(
      Written("node1 -- Input0 -- forward_compute_time=635.902, backward_compute_time=0.000, "
              "activation_size=154140672.000, parameter_size=0.000\n" +
              Node("node2", "8.0") + "\tnode1 -- node2\n"));
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].Time(), Nanoseconds{0});
  EXPECT_EQ(parts[0].memory.message, 0);
  EXPECT_FALSE(parts[0].layer);
}

TEST(PipeDreamProfile, NamesFileAndLine) {
  EXPECT_EQ(GraphError(Node("node1", "1.0") + "node2 -- ReLU()\n"),
            ":2: expected a node, as in 'node4 -- ReLU() -- forward_compute_time=1.0, …'");
  EXPECT_EQ(GraphError(Node("node1", "1.0") + Node("node1", "1.0")),
            ":2: node1 was described in line 1 already");
  EXPECT_EQ(GraphError(Node("node1", "1.0") + "\tnode1 -- node3\n"),
            ":2: there is no node called 'node3'");
  EXPECT_EQ(GraphError(Node("node1", "1.0") + Node("node2", "1.0") +
                       "\tnode1 -- node2\n\tnode2 -- node1\n"),
            ":1: the node needs its own result: the edges go round in a circle");
  EXPECT_EQ(GraphError(Node("node1", "-1.0")), ":1: activation_size: '-1.0' is negative");
  EXPECT_EQ(GraphError(Node("node1", "[1.0")), ":1: activation_size: '[1.0' has no ']'");
  EXPECT_EQ(GraphError("node1 -- ReLU() -- forward_compute_time=1.0\n"),
            ":1: backward_compute_time is missing");
  EXPECT_EQ(GraphError("\n"), ": holds no nodes");
}

TEST(LayerTimes, AreRows) {
  const std::vector<NetworkPart> parts = ReadLayerTimes(
      Written("layer,forward_ms,backward_input_ms,backward_weight_ms,weight_bytes,message_bytes\n"
              "embedding, 0.25, 0, 0.5, 100, 8\nblock,1,1,1,50,8\nhead,2,2,2,100,0\n"));
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_FALSE(parts[0].layer);
  EXPECT_TRUE(parts[1].layer);
  EXPECT_FALSE(parts[2].layer);
  EXPECT_EQ(parts[0].backward, Nanoseconds{500'000});
  EXPECT_EQ(parts[2].backward, Nanoseconds{4'000'000});
  EXPECT_EQ(parts[1].memory.gradients, 50);
  EXPECT_EQ(parts[1].memory.message, 8);
}

TEST(LayerTimes, NameFileAndLine) {
  EXPECT_EQ(TableError("layer,forwards_ms\n"),
            ":1: there is no column 'forwards_ms'; the nearest is 'forward_ms'");
  EXPECT_EQ(TableError("layer,forward_ms\na,1\n"), ":1: the column 'backward_ms' is missing");
  EXPECT_EQ(TableError("layer,forward_ms,backward_ms\n\na,1\n"),
            ":3: has 2 entries, but the header 3");
  EXPECT_EQ(TableError("layer,forward_ms,backward_ms\n"), ": holds no layers");
  EXPECT_EQ(TableError("layer,forward_ms,backward_input_ms\n"),
            ":1: backward_input_ms and backward_weight_ms are given together or not at all");
}

}  // namespace
}  // namespace pipelag
