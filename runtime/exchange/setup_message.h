#pragma once

#include "runtime/base/status.h"
#include "runtime/exchange/bootstrap.h"

#include <fmt/format.h>

#include <span>

/// How the messages of setup.proto become what a Bootstrap carries. Internal to the exchange.
namespace sluice {

template <class Proto>
Bootstrap::Blob serialise(const Proto& message) {
    Bootstrap::Blob out(message.ByteSizeLong());
    message.SerializeToArray(out.data(), static_cast<int>(out.size()));
    return out;
}

/// Malformed bytes are an internal error.
template <class Proto>
Status parse(std::span<const std::byte> bytes, Proto& message) {
    if (bytes.size() > Bootstrap::kMostBytes || !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
        return internal_error(fmt::format("a set-up message of {} bytes is malformed", bytes.size()));
    }
    return ok_status();
}

}  // namespace sluice
