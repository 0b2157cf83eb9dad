// The closed forms that come with the generators, over sweeps of everything they depend on: what is
// claimed of a schedule must be what its order gives.
#include <gtest/gtest.h>

#include <set>

#include "models/schedule/generators.h"
#include "sim/derived.h"

namespace pipelag {
namespace {

std::vector<GeneratorOptions> Variants(int p, int m) {
  const GeneratorOptions plain{.ranks = p, .microbatches = m};
  std::vector<GeneratorOptions> all{plain};
  const auto add = [&](const auto& change) {
    all.push_back(plain);
    change(all.back());
  };
  for (const int slope : {1, 2, 3}) add([&](auto& o) { o.warmup_slope = slope; });
  add([&](auto& o) {
    for (int s = 0; s < p; ++s) o.warmup.push_back((p - 1 - s) * (p - 1 - s) + s % 2);
  });
  for (const int chunks : {1, 2, 3, 4}) {
    add([&](auto& o) { o.chunks = chunks; });
    add([&](auto& o) {
      o.chunks = chunks;
      o.group = GeneratorOptions::kFlexibleGroup;
    });
    add([&](auto& o) {
      o.chunks = chunks;
      o.group = m;
    });
  }
  for (const char* body : {"1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v"}) {
    for (const bool sync : {false, true}) {
      add([&](auto& o) {
        o.body = body;
        o.vertical_sync = sync;
      });
    }
  }
  add([](auto& o) { o.vertical_sync = true; });
  for (const int i : {1, 2, 3, 4}) {
    add([&](auto& o) {
      o.reduction = i == 1;
      o.norm = i == 2 || i == 4;
      o.barrier = i == 3;
      if (i == 4) o.late_update = false;
    });
  }
  add([](auto& o) { o.memory_limit = 2; });
  return all;
}

std::string Text(const std::vector<Ratio>& values) {
  std::string text;
  for (const Ratio& value : values) {
    text += std::to_string(value.numerator) + '/' + std::to_string(value.denominator) + ' ';
  }
  return text;
}

TEST(Facts, AreWhatTheOrderGives) {
  std::map<std::string, std::set<Quantity>> claimed;
  for (const Generator& generator : Generators()) {
    for (int p = 1; p <= 7; ++p) {
      for (const int m : {1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 16, 21}) {
        for (const GeneratorOptions& options : Variants(p, m)) {
          std::optional<Program> program;
          try {
            Schedule schedule = Generate(generator.name, options);
            const bool flush = schedule.flushes();
            program.emplace(std::move(schedule), 1);
            if (!flush) *program = program->WithSteps(DefaultSteps(program->schedule()));
          } catch (const Error&) {
            continue;  // not a shape that this schedule has
          }
          for (const DerivedFact& fact : DeriveFacts(generator.facts(options), *program)) {
            EXPECT_TRUE(fact.agrees)
                << generator.name << " p=" << p << " m=" << m << " slope " << options.warmup_slope
                << " warm-up " << options.warmup.size() << " chunks " << options.chunks << " group "
                << options.group << " body " << options.body << " sync " << options.vertical_sync
                << " norm " << options.norm << options.barrier << ": "
                << QuantityName(fact.fact.quantity) << " = " << fact.fact.formula << " is "
                << Text(fact.fact.values) << "but " << Text(fact.derived);
            claimed[std::string(generator.name)].insert(fact.fact.quantity);
          }
        }
      }
    }
  }
  for (const auto& [name, quantities] : claimed) {
    EXPECT_TRUE(quantities.contains(Quantity::kWeightVersions)) << name;
    EXPECT_TRUE(quantities.contains(Quantity::kGradientDelay)) << name;
    if (name == "zb-auto") continue;
    EXPECT_TRUE(quantities.contains(Quantity::kInFlight)) << name;
    EXPECT_TRUE(quantities.contains(Quantity::kIdleOfMakespan) ||
                quantities.contains(Quantity::kSteadyIdle))
        << name;
  }
  EXPECT_EQ(claimed.size(), Generators().size());
}

// The table of bubbles: p = 4, m = 8.
TEST(Facts, OfTheTable) {
  const auto value = [](std::string_view name, Quantity quantity) -> Ratio {
    for (const Generator& generator : Generators()) {
      if (generator.name != name) continue;
      for (const Fact& fact : generator.facts({.ranks = 4, .microbatches = 8})) {
        if (fact.quantity == quantity) return fact.values[0];
      }
    }
    return {-1, 1};
  };
  EXPECT_EQ(value("gpipe", Quantity::kIdleOfMakespan), Ratio(3, 11));
  EXPECT_EQ(value("zb-h1", Quantity::kIdleOfMakespan), Ratio(1, 9));
  EXPECT_EQ(value("zb-h1", Quantity::kIdleOfSpan), Ratio(1, 9));
  EXPECT_EQ(value("zb-h2", Quantity::kIdleOfMakespan), Ratio(1, 9));
  EXPECT_EQ(value("zb-h2", Quantity::kIdleOfSpan), Ratio(0));
  EXPECT_EQ(value("zb-v", Quantity::kIdleOfMakespan), Ratio(1, 17));
  EXPECT_EQ(value("zb-v", Quantity::kIdleOfSpan), Ratio(0));
  EXPECT_EQ(value("2bw", Quantity::kSteadyIdle), Ratio(0));
}

}  // namespace
}  // namespace pipelag
