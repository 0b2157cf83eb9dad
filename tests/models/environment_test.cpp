// What variables of the environment are taken for numbers.
#include "models/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/reason.h"

namespace pipelag {
namespace {

constexpr const char* kName = "PIPELAG_TEST_NUMBER";

TEST(NumberInEnvironment, IsAWholeNumberWithinTheBoundsOrRefusedByName) {
  unsetenv(kName);
  EXPECT_FALSE(NumberInEnvironment(kName, 0, 9));
  for (const int number : {0, 7, 9}) {
    setenv(kName, std::to_string(number).c_str(), 1);
    EXPECT_EQ(NumberInEnvironment(kName, 0, 9), number);
  }
  for (const char* text : {"", "x", "1x", " 1", "1.0", "-1", "10", "99999999999999999999"}) {
    setenv(kName, text, 1);
    EXPECT_EQ(ReasonOf([] { NumberInEnvironment(kName, 0, 9); }),
              std::string(kName) + " is not a whole number from 0 to 9: '" + text + "'");
  }
  unsetenv(kName);
}

}  // namespace
}  // namespace pipelag
