// The corpora and what is drawn from them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "models/error.h"
#include "models/file.h"
#include "runtime/data/corpus.h"
#include "runtime/data/grammar.h"
#include "runtime/data/sampler.h"

namespace pipelag {
namespace {

template <class Function>
std::string Message(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::filesystem::path Temporary(const std::string& name, const std::string& content) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / name;
  WriteFile(file, content);
  return file;
}

TEST(LoadText, CutsTheLastTenth) {
  std::string text;
  for (int i = 0; i < 205; ++i) text += static_cast<char>(i);
  const auto file = Temporary("pipelag_corpus.txt", text);
  const Corpus corpus = LoadText(file, 16);
  EXPECT_EQ(corpus.train.size(), 184u);
  EXPECT_EQ(corpus.validation.size(), 21u);
  EXPECT_EQ(corpus.train.back(), 183);
  EXPECT_EQ(corpus.validation.front(), 184);
  EXPECT_EQ(corpus.validation.back(), 204);
  EXPECT_FALSE(corpus.entropy_rate.has_value());
  std::filesystem::remove(file);
}

TEST(LoadText, NamesTheFileInErrors) {
  const auto empty = Temporary("pipelag_empty.txt", "");
  EXPECT_THAT(Message([&] { LoadText(empty, 4); }), testing::HasSubstr("pipelag_empty.txt"));
  const auto brief = Temporary("pipelag_brief.txt", std::string(49, 'x'));
  EXPECT_EQ(Message([&] { LoadText(brief, 4); }), "");
  EXPECT_THAT(Message([&] { LoadText(brief, 5); }),
              testing::AllOf(testing::HasSubstr("pipelag_brief.txt has 49 bytes"),
                             testing::HasSubstr("6 bytes")));
  EXPECT_THAT(Message([&] { LoadText(brief.parent_path() / "pipelag_none.txt", 5); }),
              testing::HasSubstr("pipelag_none.txt"));
  std::filesystem::remove(empty);
  std::filesystem::remove(brief);
}

TEST(Grammar, WordsDifferAndEndInTheirOnlySpace) {
  for (const uint64_t seed : {0, 1, 77}) {
    const Grammar grammar = MakeGrammar(seed);
    std::set<std::string> words;
    for (const auto& lexicon : grammar.classes) {
      double total = 0;
      for (const Grammar::Word& word : lexicon) {
        total += word.probability;
        EXPECT_EQ(word.text.find(' '), word.text.size() - 1);
        EXPECT_TRUE(words.insert(word.text).second) << word.text;
      }
      EXPECT_NEAR(total, 1, 1e-14);
    }
    for (const auto& row : grammar.transitions) {
      double total = 0;
      for (const double p : row) total += p;
      EXPECT_NEAR(total, 1, 1e-14);
    }
  }
}

TEST(EntropyRate, OfChainsWorkedOutByHand) {
  // One class, two words of lengths 2 and 3: (ln 2) / 2.5.
  Grammar coin;
  coin.classes = {{{"a ", 0.5}, {"bb ", 0.5}}};
  coin.transitions = {{1}};
  EXPECT_NEAR(EntropyRate(coin), std::log(2.0) / 2.5, 1e-15);
  // Two classes of one word each, staying with 0.9 and 0.6: π = (0.8, 0.2).
  Grammar chain;
  chain.classes = {{{"a ", 1}}, {{"bbb ", 1}}};
  chain.transitions = {{0.9, 0.1}, {0.4, 0.6}};
  const auto h = [](double p) { return -p * std::log(p) - (1 - p) * std::log(1 - p); };
  EXPECT_NEAR(EntropyRate(chain), (0.8 * h(0.1) + 0.2 * h(0.4)) / (0.8 * 2 + 0.2 * 4), 1e-15);
}

/// Parses the text back into words and estimates the entropy from counts of (word, next word)
/// alone.
double EstimateFromText(const std::vector<uint8_t>& text, const Grammar& grammar) {
  std::map<std::string, size_t> class_of;
  for (size_t c = 0; c < grammar.classes.size(); ++c) {
    for (const Grammar::Word& word : grammar.classes[c]) class_of[word.text] = c;
  }
  std::map<size_t, std::map<size_t, double>> followers;
  std::map<size_t, std::map<std::string, double>> spoken;
  auto state = static_cast<size_t>(grammar.start);
  std::string word;
  double bytes = 0;
  for (const uint8_t byte : text) {
    word += static_cast<char>(byte);
    if (byte != ' ') continue;
    const auto found = class_of.find(word);
    if (found == class_of.end()) {
      ADD_FAILURE() << "no such word: " << word;
      return 0;
    }
    followers[state][found->second] += 1;
    spoken[found->second][word] += 1;
    state = found->second;
    bytes += static_cast<double>(word.size());
    word.clear();
  }
  double nats = 0;
  const auto add = [&nats](const auto& counts) {
    double total = 0;
    for (const auto& [key, count] : counts) total += count;
    for (const auto& [key, count] : counts) nats -= count * std::log(count / total);
  };
  for (const auto& [key, counts] : followers) add(counts);
  for (const auto& [key, counts] : spoken) add(counts);
  return nats / bytes;
}

TEST(EntropyRate, IsThatOfTheText) {
  const Grammar grammar = MakeGrammar(5);
  const double rate = EntropyRate(grammar);
  EXPECT_GT(rate, 0.3);
  EXPECT_LT(rate, 1.0);
  EXPECT_NEAR(EstimateFromText(Speak(grammar, 5, 4'000'000), grammar) / rate, 1, 2e-3);
}

TEST(GrammarCorpus, HasItsSizeAndFollowsTheSeed) {
  const Corpus corpus = GrammarCorpus(3, 64);
  EXPECT_EQ(corpus.train.size(), 360'000u);
  EXPECT_EQ(corpus.validation.size(), 40'000u);
  ASSERT_TRUE(corpus.entropy_rate.has_value());
  EXPECT_EQ(*corpus.entropy_rate, EntropyRate(MakeGrammar(3)));
  EXPECT_EQ(GrammarCorpus(3, 64).train, corpus.train);
  EXPECT_NE(GrammarCorpus(4, 64).train, corpus.train);
  EXPECT_THROW(GrammarCorpus(3, 64, 100), Error);
}

/// Every byte pair names its place, so that windows can be told apart.
Corpus Numbered(int bytes) {
  std::vector<uint8_t> text;
  for (int i = 0; i < bytes; ++i) text.push_back(static_cast<uint8_t>(i % 2 ? i / 512 : i / 2));
  return CutCorpus("numbers", text, 8);
}

TEST(FillMicrobatch, TargetsFollowTokensByOne) {
  const Corpus corpus = Numbered(20'000);
  std::vector<uint8_t> tokens(5 * 8), targets(5 * 8);
  FillMicrobatch(corpus, 1, 7, 5, 8, tokens.data(), targets.data());
  for (size_t row = 0; row < 5; ++row) {
    for (size_t t = 0; t + 1 < 8; ++t) EXPECT_EQ(targets[row * 8 + t], tokens[row * 8 + t + 1]);
    const std::vector<uint8_t> window(&tokens[row * 8], &tokens[row * 8] + 8);
    EXPECT_NE(std::search(corpus.train.begin(), corpus.train.end(), window.begin(), window.end()),
              corpus.train.end());
  }
}

TEST(FillMicrobatch, DependsOnSeedAndGlobalSampleOnly) {
  const Corpus corpus = Numbered(20'000);
  std::vector<uint8_t> whole(6 * 8);
  FillMicrobatch(corpus, 9, 2, 6, 8, whole.data(), nullptr);
  // The same six samples, 12 to 17, as three micro-batches of two.
  std::vector<uint8_t> parts(6 * 8);
  for (int i = 0; i < 3; ++i)
    FillMicrobatch(corpus, 9, 6 + i, 2, 8, &parts[static_cast<size_t>(i) * 16], nullptr);
  EXPECT_EQ(parts, whole);
  std::vector<uint8_t> targets(6 * 8), again(6 * 8);
  FillMicrobatch(corpus, 9, 2, 6, 8, nullptr, targets.data());
  FillMicrobatch(corpus, 9, 2, 6, 8, again.data(), nullptr);
  EXPECT_EQ(again, whole);
  EXPECT_NE(targets, whole);
  FillMicrobatch(corpus, 10, 2, 6, 8, again.data(), nullptr);
  EXPECT_NE(again, whole);
}

TEST(FillMicrobatch, ReachesBothEnds) {
  const Corpus corpus = CutCorpus(
      "letters", {10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29},
      1);
  std::set<uint8_t> starts;
  for (int n = 0; n < 400; ++n) {
    uint8_t token = 0;
    uint8_t target = 0;
    FillMicrobatch(corpus, 1, n, 1, 1, &token, &target);
    EXPECT_EQ(target, token + 1);
    starts.insert(token);
  }
  EXPECT_EQ(starts.size(), 17u);
  EXPECT_EQ(*starts.begin(), 10);
  EXPECT_EQ(*starts.rbegin(), 26);
}

TEST(FillValidation, SpreadsEvenlyFromEndToEnd) {
  std::vector<uint8_t> text(900, 0);
  for (int i = 0; i < 100; ++i) text.push_back(static_cast<uint8_t>(100 + i));
  const Corpus corpus = CutCorpus("steps", text, 9);
  std::vector<uint8_t> tokens(2 * 9), targets(2 * 9);
  std::vector<int> starts;
  for (int index = 0; index < 3; ++index) {
    FillValidation(corpus, index, 3, 2, 9, tokens.data(), targets.data());
    for (size_t row = 0; row < 2; ++row) {
      starts.push_back(tokens[row * 9] - 100);
      EXPECT_EQ(targets[row * 9 + 8], tokens[row * 9] + 9);
    }
  }
  EXPECT_THAT(starts, testing::ElementsAre(0, 18, 36, 54, 72, 90));
  FillValidation(corpus, 0, 1, 1, 9, tokens.data(), targets.data());
  EXPECT_EQ(tokens[0], 100);
}

}  // namespace
}  // namespace pipelag
