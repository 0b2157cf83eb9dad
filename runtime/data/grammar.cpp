#include "runtime/data/grammar.h"

#include <cmath>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "models/error.h"
#include "models/random.h"

namespace pipelag {
namespace {

// Keep the grammar's random numbers apart from those drawn for other purposes with the same seed.
constexpr uint64_t kSpellingStream = 3;
constexpr uint64_t kClassStream = 4;
constexpr uint64_t kWordStream = 5;

enum WordClass {
  kArticle,
  kAdjective,
  kNoun,
  kVerb,
  kAdverb,
  kPreposition,
  kConjunction,
  kStop,
  kClasses
};

struct ClassShape {
  int words;
  int syllables;
};

constexpr ClassShape kShapes[kClasses] = {{3, 1}, {16, 2}, {40, 2}, {20, 2},
                                          {8, 3}, {6, 1},  {3, 1},  {2, 0}};

constexpr double kTransitions[kClasses][kClasses] = {
    // article, adjective, noun, verb, adverb, preposition, conjunction, stop
    {0, 0.40, 0.60, 0, 0, 0, 0, 0},        // article
    {0, 0.15, 0.85, 0, 0, 0, 0, 0},        // adjective
    {0, 0, 0, 0.45, 0, 0.20, 0.10, 0.25},  // noun
    {0.50, 0, 0, 0, 0.15, 0.20, 0, 0.15},  // verb
    {0.30, 0, 0, 0, 0, 0.30, 0, 0.40},     // adverb
    {0.80, 0, 0.20, 0, 0, 0, 0, 0},        // preposition
    {0.70, 0, 0.30, 0, 0, 0, 0, 0},        // conjunction
    {0.70, 0, 0.20, 0, 0.10, 0, 0, 0},     // stop
};

std::string Spell(uint64_t seed, uint64_t word, int syllables) {
  constexpr std::string_view kConsonants = "bdfgklmnprstvz";
  constexpr std::string_view kVowels = "aeiou";
  std::string text;
  for (int i = 0; i < syllables; ++i) {
    const uint64_t bits = RandomBits(seed, word, static_cast<uint64_t>(i), kSpellingStream);
    const uint64_t pair = UniformBelow(bits, kConsonants.size() * kVowels.size());
    text += kConsonants[pair / kVowels.size()];
    text += kVowels[pair % kVowels.size()];
  }
  return text + " ";
}

/// The index at which the cumulative sum of probabilities passes `uniform`.
template <class List, class Probability>
size_t Draw(const List& list, double uniform, Probability probability) {
  size_t last_possible = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const double p = probability(list[i]);
    if (p <= 0) continue;
    last_possible = i;
    if (uniform < p) return i;
    uniform -= p;
  }
  return last_possible;
}

/// π with π P = π and Σ π = 1, by elimination with pivots; the last balance equation, which follows
/// from the others, makes room for the sum.
std::vector<double> StationaryDistribution(const std::vector<std::vector<double>>& transitions) {
  const size_t n = transitions.size();
  std::vector<std::vector<double>> rows(n, std::vector<double>(n + 1, 0.0));
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) rows[i][j] = transitions[j][i] - (i == j ? 1 : 0);
  }
  rows[n - 1].assign(n + 1, 1.0);
  for (size_t k = 0; k < n; ++k) {
    size_t pivot = k;
    for (size_t i = k + 1; i < n; ++i) {
      if (std::fabs(rows[i][k]) > std::fabs(rows[pivot][k])) pivot = i;
    }
    std::swap(rows[k], rows[pivot]);
    CHECK(rows[k][k] != 0);
    for (size_t i = 0; i < n; ++i) {
      if (i == k) continue;
      const double factor = rows[i][k] / rows[k][k];
      for (size_t j = k; j <= n; ++j) rows[i][j] -= factor * rows[k][j];
    }
  }
  std::vector<double> stationary(n);
  for (size_t k = 0; k < n; ++k) stationary[k] = rows[k][n] / rows[k][k];
  return stationary;
}

double Surprise(double probability) {
  return probability > 0 ? -probability * std::log(probability) : 0.0;
}

}  // namespace

Grammar MakeGrammar(uint64_t seed) {
  Grammar grammar;
  grammar.start = kStop;
  std::set<std::string> taken;
  uint64_t attempt = 0;
  for (int c = 0; c < kClasses; ++c) {
    grammar.transitions.emplace_back(std::begin(kTransitions[c]), std::end(kTransitions[c]));
    double total = 0;
    for (int i = 0; i < kShapes[c].words; ++i) total += 1.0 / (i + 1);
    std::vector<Grammar::Word> words;
    for (int i = 0; i < kShapes[c].words; ++i) {
      std::string text = i == 0 ? ". " : "? ";
      if (c != kStop) {
        do {
          text = Spell(seed, attempt++, kShapes[c].syllables);
        } while (!taken.insert(text).second);
      }
      words.push_back({std::move(text), 1.0 / (i + 1) / total});
    }
    grammar.classes.push_back(std::move(words));
  }
  return grammar;
}

double EntropyRate(const Grammar& grammar) {
  const std::vector<double> stationary = StationaryDistribution(grammar.transitions);
  double entropy = 0;
  double bytes = 0;
  for (size_t c = 0; c < stationary.size(); ++c) {
    for (const double p : grammar.transitions[c]) entropy += stationary[c] * Surprise(p);
    for (const Grammar::Word& word : grammar.classes[c]) {
      entropy += stationary[c] * Surprise(word.probability);
      bytes += stationary[c] * word.probability * static_cast<double>(word.text.size());
    }
  }
  return entropy / bytes;
}

std::vector<uint8_t> Speak(const Grammar& grammar, uint64_t seed, int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  std::vector<uint8_t> text;
  text.reserve(size + 16);
  auto state = static_cast<size_t>(grammar.start);
  for (uint64_t n = 0; text.size() < size; ++n) {
    state = Draw(grammar.transitions[state], UniformOpen(RandomBits(seed, n, 0, kClassStream)),
                 [](double p) { return p; });
    const std::vector<Grammar::Word>& words = grammar.classes[state];
    const size_t word = Draw(words, UniformOpen(RandomBits(seed, n, 0, kWordStream)),
                             [](const Grammar::Word& w) { return w.probability; });
    text.insert(text.end(), words[word].text.begin(), words[word].text.end());
  }
  text.resize(size);
  return text;
}

Corpus GrammarCorpus(uint64_t seed, int sequence, int64_t bytes) {
  const Grammar grammar = MakeGrammar(seed);
  Corpus corpus = CutCorpus("the built-in grammar", Speak(grammar, seed, bytes), sequence);
  corpus.entropy_rate = EntropyRate(grammar);
  return corpus;
}

}  // namespace pipelag
