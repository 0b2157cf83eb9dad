// The arithmetic of a study on curves with known answers: gaps, closed share, iso-loss overhead;
// and the files that curves are kept in.
#include "traces/delay_study.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "models/error.h"
#include "traces/svg_plot.h"

namespace pipelag {
namespace {

constexpr int kSteps = 100;
constexpr int64_t kTokens = 10;

/// Falls by `slope` per batch from `first`.
LossCurve Line(const CurveMode& mode, double rate, uint64_t seed, double first, double slope,
               double validation) {
  LossCurve curve{mode, rate, seed, kTokens, {}, false, validation};
  for (int i = 0; i < kSteps; ++i) curve.losses.push_back(first - slope * (i + 1));
  return curve;
}

LossCurve Diverged(const CurveMode& mode, double rate, uint64_t seed) {
  return {mode, rate, seed, kTokens, {5, 6, std::nan("")}, true, std::nullopt};
}

const CurveMode kSynchronous{"adamw", "0", "none"};
const CurveMode kLate{"adamw", "1", "none"};
const CurveMode kCorrected{"adamw", "1", "error-feedback"};

const StudyRow& Find(const std::vector<StudyRow>& rows, const CurveMode& mode, double rate) {
  for (const StudyRow& row : rows) {
    if (row.mode == mode && row.learning_rate == rate) return row;
  }
  throw InternalError("no such row");
}

TEST(SmoothCurve, OfALineIsTheLine) {
  const SmoothCurve curve(Line(kLate, 1, 1, 5, 0.01, 0).losses);
  EXPECT_EQ(curve.values().size(), 96u);  // windows of five
  EXPECT_DOUBLE_EQ(curve.first_place(), 3);
  EXPECT_NEAR(curve.Final(), 5 - 0.98, 1e-12);
  EXPECT_NEAR(*curve.StepsTo(4.505), 49.5, 1e-9);
  EXPECT_FALSE(curve.StepsTo(4.0).has_value());
  EXPECT_NEAR(curve.At(49.5), 4.505, 1e-12);
  EXPECT_NEAR(curve.At(1000), curve.Final(), 1e-12);
}

TEST(SpreadOf, MeanRangeAndStandardError) {
  const Spread spread = SpreadOf({1, 2, 3});
  EXPECT_DOUBLE_EQ(spread.mean, 2);
  EXPECT_DOUBLE_EQ(spread.least, 1);
  EXPECT_DOUBLE_EQ(spread.greatest, 3);
  EXPECT_NEAR(spread.standard_error, 1 / std::sqrt(3), 1e-12);
  EXPECT_EQ(SpreadOf({4}).standard_error, 0);
}

TEST(TabulateStudy, GapsAndClosedShare) {
  std::vector<LossCurve> curves;
  for (const uint64_t seed : {1u, 2u}) {
    const double shift = static_cast<double>(seed);  // seeds differ by far more than modes
    curves.push_back(Line(kSynchronous, 0.1, seed, 5, 0.02, 2 + shift));
    curves.push_back(Line(kLate, 0.1, seed, 5, 0.01, 2.4 + shift));
    curves.push_back(Line(kCorrected, 0.1, seed, 5, 0.016, 2.1 + shift));
    curves.push_back(Line(kSynchronous, 0.2, seed, 5, 0.02, 1.9 + shift));
    curves.push_back(Line(kLate, 0.2, seed, 5, 0.01, 2.6 + shift));
    curves.push_back(Line(kCorrected, 0.2, seed, 5, 0.03, 1.8 + shift));
  }
  const StudyTable table = TabulateStudy(curves);
  ASSERT_EQ(table.rows.size(), 6u);
  ASSERT_EQ(table.best.size(), 3u);

  const StudyRow& late = Find(table.rows, kLate, 0.1);
  EXPECT_NEAR(late.gap->mean, 0.4, 1e-9);
  EXPECT_NEAR(late.gap->standard_error, 0, 1e-9);  // paired by seed
  EXPECT_FALSE(late.closed_share.has_value());
  EXPECT_FALSE(late.iso_loss->reached);
  // After place p of the late one the synchronous one had its loss at p / 2.
  EXPECT_NEAR(*late.lag_share, 1, 1e-9);

  const StudyRow& corrected = Find(table.rows, kCorrected, 0.1);
  EXPECT_NEAR(*corrected.closed_share, 0.75, 1e-9);

  const StudyRow& ahead = Find(table.rows, kCorrected, 0.2);
  EXPECT_NEAR(*ahead.closed_share, 8.0 / 7, 1e-9);
  EXPECT_TRUE(ahead.iso_loss->reached);
  // The synchronous one ends at place 98, 1.96 lower; one half as steep again is there at 65.33.
  EXPECT_NEAR(ahead.iso_loss->extra_share, -1.0 / 3, 1e-9);
  EXPECT_NEAR(ahead.iso_loss->extra_tokens, -98.0 / 3 * kTokens, 1e-6);
  EXPECT_FALSE(ahead.lag_share.has_value());

  // Each at its own best: 0.2, 0.1 and 0.2.
  EXPECT_NEAR(Find(table.best, kLate, 0.1).gap->mean, 0.5, 1e-9);
  EXPECT_NEAR(*Find(table.best, kCorrected, 0.2).closed_share, 1.2, 1e-9);
  EXPECT_FALSE(Find(table.best, kSynchronous, 0.2).gap.has_value());
}

TEST(TabulateStudy, DivergedIsNeverANumber) {
  const StudyTable table =
      TabulateStudy({Line(kSynchronous, 0.1, 1, 5, 0.02, 2), Line(kSynchronous, 0.1, 2, 5, 0.02, 2),
                     Line(kLate, 0.1, 1, 5, 0.01, 3), Diverged(kLate, 0.1, 2),
                     Line(kCorrected, 0.1, 1, 5, 0.02, 2.5)});
  const StudyRow& late = Find(table.rows, kLate, 0.1);
  EXPECT_EQ(late.diverged, 1);
  EXPECT_EQ(late.runs, 2);
  EXPECT_FALSE(late.train || late.validation || late.gap || late.iso_loss || late.lag_share);
  // Nothing to hold the correction's share against; the gap, of unequal seeds, is that of means.
  const StudyRow& corrected = Find(table.rows, kCorrected, 0.1);
  EXPECT_NEAR(corrected.gap->mean, 0.5, 1e-9);
  EXPECT_FALSE(corrected.closed_share.has_value());
  EXPECT_EQ(StudyTableCsv(table).find("nan"), std::string::npos);
}

TEST(TabulateStudy, WithoutABaselineThereAreNoGaps) {
  const StudyTable table = TabulateStudy({Line(kLate, 0.1, 1, 5, 0.01, 3)});
  EXPECT_TRUE(table.rows[0].validation.has_value());
  EXPECT_FALSE(table.rows[0].gap || table.rows[0].iso_loss);
}

TEST(CurvesCsv, ReadsBack) {
  const std::vector<LossCurve> curves = {Line(kLate, 0.016, 3, 5, 0.01, 3),
                                         Diverged({"sgd", "3:2:1:0", "none"}, 1e-5, 2)};
  const std::vector<LossCurve> again = ParseCurvesCsv(CurvesCsv(curves), "curves.csv");
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].mode, curves[0].mode);
  EXPECT_EQ(again[0].learning_rate, 0.016);
  EXPECT_EQ(again[0].seed, 3u);
  EXPECT_EQ(again[0].tokens_per_step, kTokens);
  ASSERT_EQ(again[0].losses.size(), curves[0].losses.size());
  EXPECT_NEAR(again[0].losses.back(), curves[0].losses.back(), 1e-6);
  EXPECT_TRUE(again[1].diverged);
  EXPECT_TRUE(std::isnan(again[1].losses.back()));
}

TEST(CurvesCsv, SaysWhatIsWrongAndWhere) {
  const std::string good = CurvesCsv({Line(kLate, 0.016, 3, 5, 0.01, 3)});
  const auto message = [](const std::string& csv) {
    try {
      ParseCurvesCsv(csv, "c.csv");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message(""), testing::HasSubstr("c.csv: is empty"));
  EXPECT_THAT(message("optimizer,step\n"), testing::HasSubstr("no column 'profile'"));
  EXPECT_THAT(message(good + "adamw,1\n"), testing::HasSubstr("line 102: a cell is missing"));
  EXPECT_THAT(message(good + "adamw,1,none,0.016,3,7,80,1.0,0\n"), testing::HasSubstr("step 7"));
  EXPECT_THAT(message(good + "adamw,1,none,0.016,3,100,80,nan,0\n"),
              testing::HasSubstr("line 102"));
}

TEST(SvgPlot, DrawsEveryLineAndEscapes) {
  const std::string svg = SvgPlot(
      {{"a < b", {{"one", {{0, 1, 1, 1}, {1, 2, 1.5, 2.5}}}}}, {"c", {{"two", {{0, 3, 3, 3}}}}}},
      "tokens", "loss");
  size_t lines = 0;
  for (size_t at = 0; (at = svg.find("<polyline", at)) != std::string::npos; ++at) ++lines;
  EXPECT_EQ(lines, 2u);
  EXPECT_THAT(svg, testing::HasSubstr("a &lt; b"));
  EXPECT_THAT(svg, testing::HasSubstr(">two<"));
}

}  // namespace
}  // namespace pipelag
