#include "tools/case_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "models/error.h"
#include "models/json_file.h"
#include "tools/job_file.h"

namespace pipelag {
namespace {

using Json = nlohmann::json;

void CheckObject(const Json& object, const std::string& place,
                 const std::vector<std::string_view>& known) {
  if (!object.is_object()) {
    throw Error(fmt::format("{}: expected an object, not {}", place, object.type_name()));
  }
  CheckKeys(object, known, place);
}

const Json& At(const Json& object, const std::string& place, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) throw Error(fmt::format("{}/{}: is missing", place, key));
  return *found;
}

std::string TextAt(const Json& object, const std::string& place, const char* key,
                   const std::string& otherwise) {
  const auto found = object.find(key);
  if (found == object.end()) return otherwise;
  if (!found->is_string()) {
    throw Error(fmt::format("{}/{}: expected a text, not {}", place, key, found->type_name()));
  }
  return found->get<std::string>();
}

/// What is shown in a line of a table.
std::string LineAt(const Json& object, const std::string& place, const char* key,
                   const std::string& otherwise) {
  std::string text = TextAt(object, place, key, otherwise);
  const bool control = std::any_of(text.begin(), text.end(), [](char letter) {
    return static_cast<unsigned char>(letter) < 0x20 || letter == 0x7f;
  });
  if (control) throw Error(fmt::format("{}/{}: holds a control character", place, key));
  return text;
}

MeasuredRun MeasuredOf(const Json& object, const std::string& place) {
  CheckObject(object, place,
              {"step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "peak_memory_gib",
               "forward_s", "backward_s"});
  if (object.empty()) throw Error(fmt::format("{}: nothing was measured", place));
  const auto number = [&](const char* key) -> std::optional<double> {
    const auto found = object.find(key);
    if (found == object.end()) return std::nullopt;
    constexpr double kLeast = 1e-6;
    constexpr double kMost = 1e12;
    const double value = found->is_number() ? found->get<double>() : 0;
    if (!(value >= kLeast && value <= kMost)) {
      throw Error(fmt::format("{}/{}: {} is not a positive number from {} to {}", place, key,
                              ShowJson(*found), kLeast, kMost));
    }
    return value;
  };
  return {number("step_time_s"),    number("tokens_per_s_per_gpu"),
          number("tflops_per_gpu"), number("peak_memory_gib"),
          number("forward_s"),      number("backward_s")};
}

}  // namespace

CaseFile ReadCases(const std::filesystem::path& file, std::span<const std::string> job_keys) {
  const Json root = ReadJson(file);
  CheckObject(root, file.string() + ": ", {"source", "rows"});
  CaseFile cases;
  cases.source = LineAt(root, file.string() + ": ", "source", "");
  const Json& rows = At(root, file.string() + ": ", "rows");
  if (!rows.is_array() || rows.empty()) {
    throw Error(fmt::format("{}: /rows: expected a list of at least one row", file.string()));
  }
  std::set<std::string> names;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string place = fmt::format("{}: /rows/{}", file.string(), i);
    CheckObject(rows[i], place, {"job", "measured", "group", "name"});
    const Json& job = At(rows[i], place, "job");
    cases.rows.push_back({place, LineAt(rows[i], place, "name", fmt::format("row {}", i)),
                          LineAt(rows[i], place, "group", ""),
                          Arguments(JobOf(job, place + "/job", job_keys), {}),
                          MeasuredOf(At(rows[i], place, "measured"), place + "/measured")});
    if (!names.insert(cases.rows.back().name).second) {
      throw Error(
          fmt::format("{}/name: '{}' is the name of two rows", place, cases.rows.back().name));
    }
  }
  return cases;
}

}  // namespace pipelag
