#include "models/architecture/config_keys.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "models/error.h"

namespace pipelag {
namespace {

constexpr int64_t kGreatest = 10'000'000;

std::string Show(const nlohmann::json& value) {
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

ConfigKeys::ConfigKeys(const nlohmann::json& object, std::string file, std::string path)
    : object_(object), file_(std::move(file)), path_(std::move(path)) {
  if (!object_.is_object()) {
    throw Error(fmt::format("{}: {}: expected an object, not {}", file_,
                            path_.empty() ? "/" : path_, Show(object_)));
  }
}

void ConfigKeys::Fail(const char* name, const std::string& what) const {
  throw Error(fmt::format("{}: {}/{}: {}", file_, path_, name, what));
}

void ConfigKeys::CheckDivides(int64_t divisor, const char* divisor_name, int64_t whole,
                              const std::string& of_what) const {
  if (whole % divisor != 0) {
    Fail(divisor_name, fmt::format("{} does not divide {} of {}", divisor, of_what, whole));
  }
}

const char* ConfigKeys::Present(Names names) const {
  for (const char* name : names) {
    if (object_.contains(name)) return name;
  }
  return *names.begin();
}

const nlohmann::json* ConfigKeys::Find(Names names) const {
  for (const char* name : names) {
    read_.insert(name);
    const auto value = object_.find(name);
    if (value != object_.end() && !value->is_null()) return &*value;
  }
  return nullptr;
}

int64_t ConfigKeys::Whole(Names names, const nlohmann::json& value, int64_t least) const {
  const char* name = Present(names);
  if (!value.is_number_integer()) {
    Fail(name, fmt::format("expected a whole number, not {}", Show(value)));
  }
  const bool huge = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{kGreatest};
  const int64_t number = huge ? kGreatest + 1 : value.get<int64_t>();
  if (number < least || number > kGreatest) {
    Fail(name, fmt::format("must be from {} to {}, not {}", least, kGreatest, Show(value)));
  }
  return number;
}

int64_t ConfigKeys::Count(Names names) const {
  const nlohmann::json* value = Find(names);
  if (value == nullptr) Fail(*names.begin(), "is missing");
  return Whole(names, *value, 1);
}

int64_t ConfigKeys::CountOr(Names names, int64_t otherwise) const {
  const nlohmann::json* value = Find(names);
  return value == nullptr ? otherwise : Whole(names, *value, 1);
}

int64_t ConfigKeys::NumberOr(Names names, int64_t otherwise) const {
  const nlohmann::json* value = Find(names);
  return value == nullptr ? otherwise : Whole(names, *value, 0);
}

bool ConfigKeys::FlagOr(const char* name, bool otherwise) const {
  const nlohmann::json* value = Find({name});
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) {
    Fail(name, fmt::format("expected true or false, not {}", Show(*value)));
  }
  return value->get<bool>();
}

double ConfigKeys::DecimalOr(const char* name, double otherwise) const {
  const nlohmann::json* value = Find({name});
  if (value == nullptr) return otherwise;
  if (!value->is_number()) Fail(name, fmt::format("expected a number, not {}", Show(*value)));
  return value->get<double>();
}

std::string ConfigKeys::Text(const char* name) const {
  const nlohmann::json* value = Find({name});
  if (value == nullptr) Fail(name, "is missing");
  if (!value->is_string()) Fail(name, fmt::format("expected a text, not {}", Show(*value)));
  return value->get<std::string>();
}

std::string ConfigKeys::TextOr(const char* name, const std::string& otherwise) const {
  return Find({name}) == nullptr ? otherwise : Text(name);
}

std::vector<int64_t> ConfigKeys::Numbers(const char* name) const {
  std::vector<int64_t> numbers;
  const nlohmann::json* list = Find({name});
  if (list == nullptr) return numbers;
  if (!list->is_array()) Fail(name, fmt::format("expected a list, not {}", Show(*list)));
  for (const nlohmann::json& entry : *list) numbers.push_back(Whole({name}, entry, 0));
  return numbers;
}

std::vector<std::string> ConfigKeys::Texts(const char* name) const {
  std::vector<std::string> texts;
  const nlohmann::json* list = Find({name});
  if (list == nullptr) return texts;
  if (!list->is_array()) Fail(name, fmt::format("expected a list, not {}", Show(*list)));
  for (const nlohmann::json& entry : *list) {
    if (!entry.is_string()) Fail(name, fmt::format("expected texts, not {}", Show(entry)));
    texts.push_back(entry.get<std::string>());
  }
  return texts;
}

std::vector<std::string> ConfigKeys::Unread() const {
  std::vector<std::string> unread;
  for (const auto& [key, value] : object_.items()) {
    if (!read_.contains(key)) unread.push_back(key);
  }
  return unread;
}

}  // namespace pipelag
