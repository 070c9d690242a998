#pragma once

#include "runtime/services/log.h"

#include <cstddef>
#include <cstdint>

namespace sluice::transport {

/// Says that messages of one kind were dropped, without letting whoever sends them fill the log: a line for the first, the
/// second, the fourth, and so on.
class DropLog {
public:
    /// `what` ends the sentence "dropped 12 bytes that ...".
    void note(std::size_t bytes, const char* what) {
        ++count_;
        if ((count_ & (count_ - 1)) == 0) {
            log::info("dropped {} bytes that {} ({} such messages so far)", bytes, what, count_);
        }
    }

private:
    std::uint64_t count_ = 0;
};

}  // namespace sluice::transport
