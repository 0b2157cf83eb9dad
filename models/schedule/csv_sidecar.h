// The JSON text beside a CSV: what a CSV cannot say of a schedule.
#pragma once

#include <string>
#include <string_view>

#include "models/schedule/schedule.h"

namespace pipelag {

/// Name, policy, streams, micro-batches and groups of `schedule` from the text. Throws Error with
/// file and key.
void ReadSidecar(std::string_view text, const std::string& file_name, Schedule& schedule);

/// Whether a text is of this kind.
bool IsSidecar(const std::string& text);

}  // namespace pipelag
