#pragma once

#include "runtime/base/settings.h"
#include "runtime/base/status.h"
#include "runtime/exchange/session.h"
#include "runtime/services/device.h"

#include <cstddef>
#include <memory>
#include <span>

namespace sluice::bench {

/// A session over UCX whose weights lie in `device`'s memory; links are tried out with `probe`.
Result<std::unique_ptr<Session>> open_gpu_session(const Settings& settings, Device& device, std::span<std::byte> probe);

}  // namespace sluice::bench
