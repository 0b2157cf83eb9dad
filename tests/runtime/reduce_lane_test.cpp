// A norm sums what the exchange before it has written, whoever comes last, and steps do not mix.
#include <gtest/gtest.h>

#include <vector>

#include "models/schedule/generators.h"
#include "runtime/cpu/local_transport.h"

namespace pipelag {
namespace {

TEST(ReduceLane, ANormWaitsForTheExchangeBeforeItAndSumsItsNorm) {
  const Program program(
      Generate("1f1b", {.ranks = 3, .microbatches = 3, .norm = true, .tied = true}), 2);
  const int shared = 0;
  const int norm = 1;
  ASSERT_EQ(program.schedule().groups[0].purpose, CollectiveGroup::Purpose::kShared);
  ASSERT_EQ(program.schedule().groups[1].purpose, CollectiveGroup::Purpose::kNorm);
  const RunControl control(std::chrono::seconds(5));
  LocalHub hub(program, control);
  std::vector<std::unique_ptr<Transport>> ends;
  for (int rank = 0; rank < 3; ++rank) ends.push_back(hub.End(rank));

  std::vector<float> lookup = {1, 2, 3};
  std::vector<float> head = {10, 20, 30};
  std::vector<std::vector<double>> norms = {{0, 1, 0}, {0, 2, 4}, {0, 0, 8}};
  const auto post_norm = [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    return ends[r]->PostAllReduce(norm, norms[r], {});
  };
  // The last stage, then the middle one, which has nothing to exchange, then the first.
  const EventPtr exchanged = ends[2]->PostGradientSum(shared, {{2, head, nullptr}}, {});
  const EventPtr last = post_norm(2);
  const EventPtr middle = post_norm(1);
  EXPECT_FALSE(exchanged->Happened());
  EXPECT_FALSE(last->Happened());
  const EventPtr mine = ends[0]->PostGradientSum(shared, {{0, lookup, norms[0].data()}}, {});
  EXPECT_TRUE(mine->Happened());
  EXPECT_TRUE(exchanged->Happened());
  EXPECT_FALSE(middle->Happened());
  const EventPtr first = post_norm(0);
  for (const EventPtr& event : {first, middle, last}) EXPECT_TRUE(event->Happened());
  const std::vector<float> sum = {11, 22, 33};
  EXPECT_EQ(lookup, sum);
  EXPECT_EQ(head, sum);
  for (const std::vector<double>& all : norms) {
    EXPECT_EQ(all, (std::vector<double>{121 + 484 + 1089, 3, 12}));
  }
}

TEST(ReduceLane, TheNextStepStandsBehindThisOne) {
  const Program program(
      Generate("1f1b", {.ranks = 2, .microbatches = 2, .norm = true, .tied = true}), 2);
  const RunControl control(std::chrono::seconds(5));
  LocalHub hub(program, control);
  const auto first = hub.End(0);
  const auto last = hub.End(1);
  std::vector<float> a = {1};
  std::vector<float> b = {2};
  std::vector<double> c = {0};
  std::vector<double> d = {0};
  const EventPtr summed = first->PostGradientSum(0, {{0, a, c.data()}}, {});
  const EventPtr normed = first->PostAllReduce(1, c, {});
  // Twice ahead: the next step's exchange stands behind this step's norm.
  std::vector<float> next = {5};
  const EventPtr later = first->PostGradientSum(0, {{0, next, nullptr}}, {});
  last->PostGradientSum(0, {{1, b, nullptr}}, {});
  EXPECT_TRUE(summed->Happened());
  EXPECT_FALSE(normed->Happened());
  last->PostAllReduce(1, d, {});
  EXPECT_TRUE(normed->Happened());
  EXPECT_EQ(d, std::vector<double>{9});
  EXPECT_FALSE(later->Happened());
  std::vector<float> last_next = {6};
  last->PostGradientSum(0, {{1, last_next, nullptr}}, {});
  EXPECT_TRUE(later->Happened());
  EXPECT_EQ(next, std::vector<float>{11});
}

}  // namespace
}  // namespace pipelag
