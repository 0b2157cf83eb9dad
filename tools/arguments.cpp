// Command lines by boost::program_options, which splits them into flags and values; every value is
// read here, so that its error can name the flag or the place in the job file.
#include "tools/arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <filesystem>
#include <limits>
#include <sstream>

#include "models/file.h"
#include "models/names.h"
#include "tools/job_file.h"

namespace pipelag {
namespace {

constexpr int64_t kMostSmall = 1'000'000;

namespace po = boost::program_options;

po::options_description Describe(const Subcommand& subcommand) {
  po::options_description description("Flags", 100, 60);
  const auto add = [&](const Flag& flag) {
    const std::string name =
        flag.letter == 0 ? flag.name : fmt::format("{},{}", flag.name, flag.letter);
    if (flag.takes == FlagValue::kNone) {
      description.add_options()(name.c_str(), flag.help.c_str());
      return;
    }
    auto* value = po::value<std::string>()->value_name(flag.value);
    if (flag.takes == FlagValue::kOptional) value->implicit_value("", "");
    description.add_options()(name.c_str(), value, flag.help.c_str());
  };
  for (const Flag& flag : subcommand.flags) add(flag);
  add({"help", "", "show this help", FlagValue::kNone});
  return description;
}

/// Program_options takes a value that may be left out only in the form --name=value.
std::vector<std::string> JoinOptionalValues(const Subcommand& subcommand,
                                            const std::vector<std::string>& words) {
  std::vector<std::string> joined;
  for (const std::string& word : words) {
    const bool number =
        !word.empty() &&
        (std::isdigit(static_cast<unsigned char>(word[0])) || word[0] == '.' || word[0] == '-') &&
        !word.starts_with("--");
    const bool behind_optional =
        !joined.empty() &&
        std::any_of(subcommand.flags.begin(), subcommand.flags.end(), [&](const Flag& flag) {
          return flag.takes == FlagValue::kOptional && joined.back() == "--" + flag.name;
        });
    if (number && behind_optional) {
      joined.back() += '=' + word;
    } else {
      joined.push_back(word);
    }
  }
  return joined;
}

/// In place of what program_options says: the same, with the nearest known flag.
Error UnknownFlag(const Subcommand& subcommand, const std::string& word) {
  const std::string name = word.substr(std::min(word.size(), word.find_first_not_of('-')));
  std::vector<std::string_view> known{"help"};
  for (const Flag& flag : subcommand.flags) known.push_back(flag.name);
  return Error(fmt::format("{} is not a flag of 'pipelag {}'; the nearest is --{}", word,
                           subcommand.name, Nearest(name.substr(0, name.find('=')), known)));
}

po::parsed_options Split(const Subcommand& subcommand, const po::options_description& description,
                         const std::vector<std::string>& words) {
  namespace style = po::command_line_style;
  constexpr int kStyle = style::allow_long | style::long_allow_adjacent | style::long_allow_next |
                         style::allow_short | style::allow_dash_for_short |
                         style::short_allow_next | style::short_allow_adjacent;
  try {
    return po::command_line_parser(words).options(description).style(kStyle).run();
  } catch (const po::unknown_option& error) {
    throw UnknownFlag(subcommand, error.get_option_name());
  } catch (const po::error& error) {
    throw Error(error.what());
  }
}

std::string Usage(const Subcommand& subcommand) {
  return fmt::format("pipelag {}{}{} [flags]", subcommand.name,
                     subcommand.operands.empty() ? "" : " ", subcommand.operands);
}

void CheckOperands(const Subcommand& subcommand, const std::vector<std::string>& operands) {
  if (operands.size() > subcommand.most_operands) {
    throw Error(fmt::format("'{}' is one word too many: the usage is '{}'",
                            operands[subcommand.most_operands], Usage(subcommand)));
  }
  if (operands.size() < subcommand.fewest_operands) {
    throw Error(fmt::format("too few files are named: the usage is '{}'", Usage(subcommand)));
  }
}

std::vector<std::string> SplitAtCommas(const std::string& text) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (;;) {
    const size_t comma = text.find(',', begin);
    parts.push_back(text.substr(begin, comma - begin));
    if (comma == std::string::npos) return parts;
    begin = comma + 1;
  }
}

/// Puts the flag or the place in the job file before what is wrong with a value.
template <class Parse>
auto Read(const std::string& place, const std::string& text, const Parse& parse) {
  try {
    return parse(text);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", place, error.what()));
  }
}

/// Every (place, text) of a list, parsed.
template <class Parse>
auto ReadList(const std::vector<std::pair<std::string, std::string>>& entries, const Parse& parse) {
  std::vector<decltype(parse(entries[0].second))> values;
  for (const auto& [place, text] : entries) values.push_back(Read(place, text, parse));
  return values;
}

int64_t AtLeast(int64_t least, const std::string& place, const std::string& text) {
  const int64_t value = Read(place, text, ParseInteger);
  if (value < least) throw Error(fmt::format("{}: '{}' is less than {}", place, text, least));
  if (value > std::numeric_limits<int>::max()) {
    throw Error(
        fmt::format("{}: '{}' is more than {}", place, text, std::numeric_limits<int>::max()));
  }
  return value;
}

}  // namespace

Arguments Arguments::With(const std::string& name, Given value) const {
  Arguments other = *this;
  other.given_[name] = std::move(value);
  return other;
}

Arguments Arguments::Without(const std::string& name) const {
  Arguments result = *this;
  result.given_.erase(name);
  return result;
}

bool Arguments::HasValue(const std::string& name) const {
  const auto entry = given_.find(name);
  return entry != given_.end() && !entry->second.items.empty();
}

std::string Arguments::PlaceOf(const std::string& name) const {
  const auto entry = given_.find(name);
  return entry == given_.end() ? "--" + name : entry->second.place;
}

const Given& Arguments::At(const std::string& name) const {
  const auto entry = given_.find(name);
  if (entry == given_.end()) throw Error(fmt::format("--{} is missing", name));
  return entry->second;
}

std::string Arguments::Text(const std::string& name) const {
  const Given& given = At(name);
  if (given.items.empty()) throw Error(fmt::format("{}: expected a value", given.place));
  if (given.listed) throw Error(fmt::format("{}: expected one value, not a list", given.place));
  if (given.items[0].empty()) throw Error(fmt::format("{}: the value is empty", given.place));
  return given.items[0];
}

std::vector<std::string> Arguments::Texts(const std::string& name) const {
  const Given& given = At(name);
  const std::vector<std::string> texts = given.listed ? given.items : SplitAtCommas(Text(name));
  for (const std::string& text : texts) {
    if (text.empty()) throw Error(fmt::format("{}: an entry of the list is empty", given.place));
  }
  return texts;
}

int64_t Arguments::Count(const std::string& name) const {
  return AtLeast(1, PlaceOf(name), Text(name));
}

int64_t Arguments::Number(const std::string& name) const {
  return AtLeast(0, PlaceOf(name), Text(name));
}

double Arguments::Decimal(const std::string& name) const {
  return Read(PlaceOf(name), Text(name), ParseDecimal);
}

Nanoseconds Arguments::Duration(const std::string& name) const {
  return Read(PlaceOf(name), Text(name), ParseDuration);
}

std::vector<Nanoseconds> Arguments::Durations(const std::string& name) const {
  return ReadList(Entries(name), ParseDuration);
}

std::vector<Bytes> Arguments::Sizes(const std::string& name) const {
  return ReadList(Entries(name), ParseBytes);
}

std::vector<int> Arguments::SmallNumbers(const std::string& name) const {
  std::vector<int> numbers;
  for (const auto& [place, text] : Entries(name)) {
    const int64_t number = AtLeast(0, place, text);
    if (number > kMostSmall) {
      throw Error(fmt::format("{}: {} is more than {}", place, number, kMostSmall));
    }
    numbers.push_back(static_cast<int>(number));
  }
  return numbers;
}

/// The entries of a list with the place of each.
std::vector<std::pair<std::string, std::string>> Arguments::Entries(const std::string& name) const {
  const std::vector<std::string> texts = Texts(name);
  std::vector<std::pair<std::string, std::string>> entries;
  for (size_t i = 0; i < texts.size(); ++i) {
    entries.emplace_back(At(name).listed ? fmt::format("{}/{}", PlaceOf(name), i) : PlaceOf(name),
                         texts[i]);
  }
  return entries;
}

Bytes Arguments::Size(const std::string& name) const {
  return Read(PlaceOf(name), Text(name), ParseBytes);
}

Bandwidth Arguments::Rate(const std::string& name) const {
  return Read(PlaceOf(name), Text(name), ParseBandwidth);
}

std::string Arguments::Choice(const std::string& name,
                              std::span<const std::string_view> known) const {
  std::string text = Text(name);
  if (std::find(known.begin(), known.end(), text) == known.end()) {
    throw Error(fmt::format("{}: '{}' is none of {}; the nearest is '{}'", PlaceOf(name), text,
                            fmt::join(known, ", "), Nearest(text, known)));
  }
  return text;
}

std::string Arguments::Output(const std::string& name) const {
  namespace fs = std::filesystem;
  if (!Has(name)) return "";
  std::string file = Text(name);
  CheckWritable(file);
  const auto refuse = [&](const fs::path& other, const std::string& place) {
    std::error_code missing;
    if (fs::path(file).lexically_normal() == other.lexically_normal() ||
        fs::equivalent(file, other, missing)) {
      throw Error(fmt::format("{}: {} is needed for {} already", PlaceOf(name), file, place));
    }
  };
  // What a CSV cannot say of a schedule stands beside it.
  const auto keep = [&](const std::string& other, const std::string& place, bool schedule) {
    refuse(other, place);
    fs::path beside = other;
    if (schedule && beside.extension() == ".csv") {
      refuse(beside.replace_extension(".json"), place);
    }
  };
  for (const std::string& operand : operands_) keep(operand, "an input", false);
  for (const auto& [other, given] : given_) {
    if (other == name) continue;
    for (const std::string& item : given.items) {
      for (const std::string& text : SplitAtCommas(item)) {
        keep(text, given.place, other == "schedule" || other == "export");
      }
    }
  }
  return file;
}

std::string Arguments::TextOr(const std::string& name, const std::string& otherwise) const {
  return Has(name) ? Text(name) : otherwise;
}

int64_t Arguments::CountOr(const std::string& name, int64_t otherwise) const {
  return Has(name) ? Count(name) : otherwise;
}

int64_t Arguments::NumberOr(const std::string& name, int64_t otherwise) const {
  return Has(name) ? Number(name) : otherwise;
}

Arguments ParseArguments(const Subcommand& subcommand, const std::vector<std::string>& words,
                         std::span<const std::string> job_keys) {
  const po::options_description description = Describe(subcommand);
  const po::parsed_options parsed =
      Split(subcommand, description, JoinOptionalValues(subcommand, words));
  std::map<std::string, Given> given;
  std::vector<std::string> operands;
  for (const po::option& option : parsed.options) {
    if (option.string_key.empty()) {
      operands.insert(operands.end(), option.value.begin(), option.value.end());
      continue;
    }
    const std::string place = "--" + option.string_key;
    const auto flag =
        std::find_if(subcommand.flags.begin(), subcommand.flags.end(),
                     [&](const Flag& known) { return known.name == option.string_key; });
    if (flag != subcommand.flags.end() && flag->takes == FlagValue::kRepeated) {
      Given& all = given.try_emplace(flag->name, Given{{}, true, place}).first->second;
      all.items.insert(all.items.end(), option.value.begin(), option.value.end());
      continue;
    }
    if (!given.try_emplace(option.string_key, Given{option.value, false, place}).second) {
      throw Error(fmt::format("{} is given twice", place));
    }
  }
  if (given.contains("help")) return Arguments(std::move(given), {});
  CheckOperands(subcommand, operands);
  if (subcommand.reads_job && !operands.empty()) given.merge(ReadJob(operands[0], job_keys));
  for (const Flag& flag : subcommand.flags) {
    const auto switched = given.find(flag.name);
    if (flag.takes != FlagValue::kNone || switched == given.end()) continue;
    if (switched->second.items.empty()) continue;
    throw Error(fmt::format("{}: is a switch, true or false, not '{}'", switched->second.place,
                            fmt::join(switched->second.items, ",")));
  }
  return Arguments(std::move(given), std::move(operands));
}

std::string HelpText(const Subcommand& subcommand) {
  std::ostringstream text;
  text << fmt::format("usage: {}\n\n{}\n\n", Usage(subcommand), subcommand.summary)
       << Describe(subcommand);
  if (!subcommand.details.empty()) text << '\n' << subcommand.details << '\n';
  return std::move(text).str();
}

Flag FormatFlag() { return {"format", "text|json", "form of the result (default: text)"}; }

bool WantsJson(const Arguments& arguments) {
  constexpr std::string_view kFormats[] = {"text", "json"};
  return arguments.Has("format") && arguments.Choice("format", kFormats) == "json";
}

}  // namespace pipelag
