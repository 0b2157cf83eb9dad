// Quantities: what is read, what is refused, how it is shown.
#include "models/units.h"

#include <gtest/gtest.h>

#include "models/compute_rate.h"
#include "models/error.h"

namespace pipelag {
namespace {

TEST(Units, ReadsDurationsExactly) {
  EXPECT_EQ(ParseDuration("1.5ms").count(), 1'500'000);
  EXPECT_EQ(ParseDuration("8us").count(), 8'000);
  EXPECT_EQ(ParseDuration("0.1us").count(), 100);
  EXPECT_EQ(ParseDuration("2s").count(), 2'000'000'000);
  EXPECT_EQ(ParseDuration("0").count(), 0);
  EXPECT_EQ(ParseDuration("0.000000001s").count(), 1);
}

TEST(Units, RefusesWhatItCannotHold) {
  for (const char* text : {"", "5", "ms", "-1ms", "1.5", "1.2.3ms", "1 ms", "1msx", "0.1ns",
                           "99999999999999999999s", "9999999999999s", "1e3ms"}) {
    EXPECT_THROW(ParseDuration(text), Error) << text;
  }
  for (const char* text : {"0GB/s", "25GB", "25", "-1GB/s"}) {
    EXPECT_THROW(ParseBandwidth(text), Error) << text;
  }
  EXPECT_THROW(ParseBytes("0.5B"), Error);
  EXPECT_THROW(ParseInteger("4x"), Error);
  EXPECT_THROW(ParseInteger("99999999999999999999"), Error);
}

TEST(Units, SaysWhatIsWrong) {
  try {
    ParseDuration("5");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "'5' is not a time: its unit is missing (an example is 1.5ms)");
  }
}

TEST(Units, ReadsSizesAndRates) {
  EXPECT_EQ(ParseBytes("16MiB"), 16LL << 20);
  EXPECT_EQ(ParseBytes("4KB"), 4000);
  EXPECT_EQ(ParseBandwidth("25GB/s").bytes_per_second, 25'000'000'000);
  EXPECT_EQ(ParseBandwidth("400Gbit/s").bytes_per_second, 50'000'000'000);
  EXPECT_EQ(ParseBandwidth("unlimited").bytes_per_second, 0);
}

TEST(Units, ReadsComputeRates) {
  EXPECT_EQ(ParseComputeRate("400TFLOP/s").flops_per_second, 400'000'000'000'000);
  EXPECT_EQ(ParseComputeRate("1.5PFLOP/s").flops_per_second, 1'500'000'000'000'000);
  EXPECT_EQ(ParseBandwidth("3.35TB/s").bytes_per_second, 3'350'000'000'000);
  for (const char* text : {"0", "0TFLOP/s", "400", "400TB/s", "-1TFLOP/s", "1TFLOPS"}) {
    EXPECT_THROW(ParseComputeRate(text), Error) << text;
  }
}

TEST(Units, TransferTimeRoundsUp) {
  EXPECT_EQ(TransferTime(1, Bandwidth{1'000'000'000}).count(), 1);
  EXPECT_EQ(TransferTime(10, Bandwidth{3'000'000'000}).count(), 4);
  EXPECT_EQ(TransferTime(0, Bandwidth{1}).count(), 0);
  EXPECT_EQ(TransferTime(1 << 20, Bandwidth{}).count(), 0);
}

}  // namespace
}  // namespace pipelag
