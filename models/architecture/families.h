// Architectures by the "model_type" of their config.json, each with the function that reads its
// shape. A new one is a function and a line in the table of families.cpp. Knows no files.
#pragma once

#include <span>
#include <string_view>

#include "models/architecture/config_keys.h"
#include "models/architecture/transformer.h"

namespace pipelag {

struct Family {
  std::string_view model_type;
  Transformer (*read)(const ConfigKeys& keys);
};

std::span<const Family> Families();

}  // namespace pipelag
