// The corpora and what is drawn from them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "models/error.h"
#include "models/file.h"
#include "runtime/data/corpus.h"
#include "runtime/data/grammar.h"
#include "runtime/data/sampler.h"
#include "tests/reason.h"
#include "tests/runtime/scratch_folder.h"
#include "tests/scratch.h"

namespace pipelag {
namespace {

std::filesystem::path Temporary(const std::string& name, const std::string& content) {
  const std::filesystem::path file = Scratch(name);
  WriteFile(file, content);
  return file;
}

TEST(LoadCorpus, CutsTheLastTenth) {
  std::string text;
  for (int i = 0; i < 205; ++i) text += static_cast<char>(i);
  const auto file = Temporary("pipelag_corpus.txt", text);
  const Corpus corpus = LoadCorpus({file}, {}, 16);
  EXPECT_EQ(corpus.train.size(), 184);
  EXPECT_EQ(corpus.validation.size(), 21);
  EXPECT_EQ(corpus.train.Tokens().back(), 183);
  EXPECT_EQ(corpus.validation.Tokens().front(), 184);
  EXPECT_EQ(corpus.validation.Tokens().back(), 204);
  EXPECT_FALSE(corpus.entropy_rate.has_value());
  std::filesystem::remove(file);
}

TEST(LoadCorpus, NamesTheFileInErrors) {
  const auto empty = Temporary("pipelag_empty.txt", "");
  EXPECT_THAT(ReasonOf([&] { LoadCorpus({empty}, {}, 4); }),
              testing::HasSubstr("pipelag_empty.txt"));
  const auto brief = Temporary("pipelag_brief.txt", std::string(49, 'x'));
  EXPECT_EQ(ReasonOf([&] { LoadCorpus({brief}, {}, 4); }), "");
  EXPECT_THAT(ReasonOf([&] { LoadCorpus({brief}, {}, 5); }),
              testing::AllOf(testing::HasSubstr("pipelag_brief.txt has 49 bytes"),
                             testing::HasSubstr("6 bytes")));
  EXPECT_THAT(ReasonOf([&] { LoadCorpus({brief.parent_path() / "pipelag_none.txt"}, {}, 5); }),
              testing::HasSubstr("pipelag_none.txt"));
  std::filesystem::remove(empty);
  std::filesystem::remove(brief);
}

std::string Tokens16(const std::vector<Token>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Token)};
}

std::string LlmcTokens(const std::vector<Token>& tokens) {
  std::vector<int32_t> header(256, 0);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = static_cast<int32_t>(tokens.size());
  return std::string(reinterpret_cast<const char*>(header.data()), 1024) + Tokens16(tokens);
}

std::vector<Token> Counted(int from, int to) {
  std::vector<Token> tokens;
  for (int i = from; i < to; ++i) tokens.push_back(static_cast<Token>(i));
  return tokens;
}

class TokenFiles : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& content) const {
    WriteFile(folder_.path() / name, content);
    return folder_.path() / name;
  }

  ScratchFolder folder_;
};

TEST_F(TokenFiles, OfBothFormsHoldTheSame) {
  const std::vector<Token> tokens = Counted(300, 500);
  const std::string plain = Write("plain.bin", Tokens16(tokens));
  const std::string headed = Write("headed.bin", LlmcTokens(tokens));
  EXPECT_EQ(OpenTokens(plain).Tokens(), tokens);
  EXPECT_EQ(OpenTokens(headed).Tokens(), tokens);
  const Corpus corpus = LoadCorpus({plain}, {}, 8);
  EXPECT_FALSE(corpus.bytes);
  EXPECT_EQ(corpus.train.Tokens(), Counted(300, 480));
  EXPECT_EQ(corpus.validation.Tokens(), Counted(480, 500));
  EXPECT_EQ(Fingerprint(OpenTokens(plain)), Fingerprint(OpenTokens(headed)));
}

TEST_F(TokenFiles, SeveralAreOneRow) {
  std::vector<std::string> files;
  for (int i = 0; i < 5; ++i) {
    const std::vector<Token> part = Counted(1000 + 7 * i, 1007 + 7 * i);
    files.push_back(Write(std::to_string(i) + ".bin", i % 2 ? LlmcTokens(part) : Tokens16(part)));
  }
  files.push_back(Write("empty.bin", ""));
  const std::string validation = Write("validation.bin", Tokens16(Counted(5, 15)));
  const Corpus corpus = LoadCorpus(files, {validation}, 8);
  EXPECT_EQ(corpus.train.Tokens(), Counted(1000, 1035));
  EXPECT_EQ(corpus.validation.Tokens(), Counted(5, 15));
  std::vector<Token> window(20);
  for (int64_t start = 0; start + 20 <= 35; ++start) {
    corpus.train.Copy(start, 20, window.data());
    EXPECT_EQ(window, Counted(static_cast<int>(1000 + start), static_cast<int>(1020 + start)));
    EXPECT_EQ(corpus.train.Part(start, start + 20).Tokens(), window);
  }
  const std::string text = Write("text.txt", "some text, long enough");
  EXPECT_THAT(ReasonOf([&] {
                LoadCorpus({files[0], text}, {}, 4);
              }),
              testing::HasSubstr("text.txt"));
  EXPECT_THAT(ReasonOf([&] { LoadCorpus(files, {text}, 4); }), testing::HasSubstr("text.txt"));
  EXPECT_THAT(ReasonOf([&] { LoadCorpus(files, {validation}, 10); }),
              testing::HasSubstr("validation.bin: 10 tokens"));
}

TEST_F(TokenFiles, CutShortAreRefusedByName) {
  const std::string whole = LlmcTokens(Counted(0, 50));
  for (const size_t length : {size_t{4}, size_t{1000}, size_t{1024}, whole.size() - 2,
                              whole.size() - 1, whole.size() + 2}) {
    std::string cut = whole;
    cut.resize(length, 'x');
    const std::string file = Write("cut.bin", cut);
    EXPECT_THAT(ReasonOf([&] { OpenTokens(file); }), testing::HasSubstr("cut.bin: ")) << length;
  }
  EXPECT_THAT(ReasonOf([&] { OpenTokens(Write("odd.bin", "123")); }),
              testing::HasSubstr("odd.bin: 3 bytes"));
  std::string other = whole;
  other[4] = 2;
  EXPECT_THAT(ReasonOf([&] { OpenTokens(Write("other.bin", other)); }),
              testing::HasSubstr("other.bin: is of version 2"));
  const int32_t model = 20240326;
  other.replace(0, 4, reinterpret_cast<const char*>(&model), 4);
  EXPECT_THAT(ReasonOf([&] { OpenTokens(Write("model.bin", other)); }),
              testing::HasSubstr("model.bin: is a file of llm.c"));
}

TEST_F(TokenFiles, VocabularyIsChecked) {
  std::vector<Token> tokens(40, 6);
  tokens[30] = 50256;
  const std::string file = Write("some.bin", LlmcTokens(tokens));
  const TokenSequence all = OpenTokens(file);
  const auto limited = [](TokenSequence part, int vocabulary) {
    return ReasonOf([&] { part.LimitTo(vocabulary); });
  };
  EXPECT_EQ(limited(all, 50257), "");
  EXPECT_EQ(limited(all, kMostTokens), "");
  EXPECT_EQ(limited(all, 50256),
            file + ": token 50256 at byte 1084 is not below --vocabulary 50256");
  EXPECT_THAT(limited(all.Part(20, 40), 7), testing::HasSubstr("at byte 1084"));
  EXPECT_EQ(limited(all.Part(0, 30), 7), "");
  EXPECT_THAT(limited(CutCorpus("letters", std::vector<uint8_t>(40, 97), 2).validation, 97),
              testing::HasSubstr("letters: token 97 at byte 36"));
}

/// Whoever reads on meets what became of it, and no other part.
TEST_F(TokenFiles, CutShortLaterAreNamed) {
  for (const char* name : {"text.txt", "tokens.bin"}) {
    const std::string file = Write(name, std::string(4000, 'x'));
    const Corpus corpus = LoadCorpus({file}, {}, 16);
    const int64_t kept = corpus.bytes ? 1000 : 500;
    std::filesystem::resize_file(file, 1000);
    std::vector<Token> tokens(16);
    corpus.train.Copy(kept - 16, 16, tokens.data());
    EXPECT_EQ(ReasonOf([&] { corpus.train.Copy(kept - 15, 16, tokens.data()); }),
              file +
                  ": has been cut short: it had 4000 bytes when it was opened, and byte 1000 is "
                  "not there any more");
    EXPECT_THAT(ReasonOf([&] { FillValidation(corpus, 0, 1, 1, 16, tokens.data(), nullptr); }),
                testing::HasSubstr("cut short"));
  }
}

/// What is beyond the vocabulary would be read as weights from beyond the embedding.
TEST_F(TokenFiles, ReplacedInPlaceAreLimitedStill) {
  const std::string file = Write("tokens.bin", Tokens16(Counted(0, 100)));
  Corpus corpus = LoadCorpus({file}, {}, 8);
  corpus.train.LimitTo(100);
  std::vector<Token> tokens(8);
  corpus.train.Copy(40, 8, tokens.data());
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary) << Tokens16(Counted(70, 170));
  corpus.train.Copy(20, 8, tokens.data());
  EXPECT_EQ(tokens, Counted(90, 98));
  EXPECT_EQ(ReasonOf([&] { corpus.train.Copy(25, 8, tokens.data()); }),
            file + ": token 100 at byte 60 is not below --vocabulary 100");
  EXPECT_NE(ReasonOf([&] { corpus.train.Part(25, 40).Copy(0, 8, tokens.data()); }), "");
}

TEST_F(TokenFiles, FingerprintsDifferWhicheverTokenDoes) {
  for (const int size : {1, 2, 4095, 4096, 4097, 8193, 60'000}) {
    std::vector<Token> tokens = Counted(0, size);
    const std::string before = Fingerprint(OpenTokens(Write("a.bin", Tokens16(tokens))));
    for (int k = 0; k < size; k += 1 + size / 97) {
      Token& token = tokens[static_cast<size_t>(k)];
      token ^= 1;
      EXPECT_NE(Fingerprint(OpenTokens(Write("b.bin", Tokens16(tokens)))), before) << k;
      token ^= 1;
    }
  }
}

TEST_F(TokenFiles, FingerprintsDiffer) {
  std::vector<Token> tokens = Counted(0, 60'000);
  const std::string before = Fingerprint(OpenTokens(Write("a.bin", Tokens16(tokens))));
  ++tokens.back();
  EXPECT_NE(Fingerprint(OpenTokens(Write("b.bin", Tokens16(tokens)))), before);
  --tokens.back();
  tokens.push_back(1);
  EXPECT_NE(Fingerprint(OpenTokens(Write("c.bin", Tokens16(tokens)))), before);
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
  EXPECT_EQ(corpus.train.size(), 360'000);
  EXPECT_EQ(corpus.validation.size(), 40'000);
  ASSERT_TRUE(corpus.entropy_rate.has_value());
  EXPECT_EQ(*corpus.entropy_rate, EntropyRate(MakeGrammar(3)));
  EXPECT_EQ(GrammarCorpus(3, 64).train.Tokens(), corpus.train.Tokens());
  EXPECT_NE(GrammarCorpus(4, 64).train.Tokens(), corpus.train.Tokens());
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
  const std::vector<Token> all = corpus.train.Tokens();
  std::vector<Token> tokens(5 * 8), targets(5 * 8);
  FillMicrobatch(corpus, 1, 7, 5, 8, tokens.data(), targets.data());
  for (size_t row = 0; row < 5; ++row) {
    for (size_t t = 0; t + 1 < 8; ++t) EXPECT_EQ(targets[row * 8 + t], tokens[row * 8 + t + 1]);
    const std::vector<Token> window(&tokens[row * 8], &tokens[row * 8] + 8);
    EXPECT_NE(std::search(all.begin(), all.end(), window.begin(), window.end()), all.end());
  }
}

TEST(FillMicrobatch, DependsOnSeedAndGlobalSampleOnly) {
  const Corpus corpus = Numbered(20'000);
  std::vector<Token> whole(6 * 8);
  FillMicrobatch(corpus, 9, 2, 6, 8, whole.data(), nullptr);
  // The same six samples, 12 to 17, as three micro-batches of two.
  std::vector<Token> parts(6 * 8);
  for (int i = 0; i < 3; ++i)
    FillMicrobatch(corpus, 9, 6 + i, 2, 8, &parts[static_cast<size_t>(i) * 16], nullptr);
  EXPECT_EQ(parts, whole);
  std::vector<Token> targets(6 * 8), again(6 * 8);
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
  std::set<Token> starts;
  for (int n = 0; n < 400; ++n) {
    Token token = 0;
    Token target = 0;
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
  std::vector<Token> tokens(2 * 9), targets(2 * 9);
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
