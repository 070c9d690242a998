#pragma once

#include "runtime/exchange/message.h"
#include "runtime/services/log.h"

#include <string>

namespace sluice {

/// Lines about what a broken or hostile peer can cause again and again: so many, and then no more, since it must not fill the disk. One thread.
class LineLimit {
public:
    /// False when there are no lines left.
    [[nodiscard]] bool take() {
        if (left_ == 0) {
            return false;
        }
        --left_;
        return true;
    }

    /// Says that a message was dropped, if there is a line left.
    void dropped(const Message& message, const std::string& why) {
        if (take()) {
            log::warning("dropped a message of kind {} from rank {}: {}", static_cast<int>(message.kind),
                         message.sender, why);
        }
    }

private:
    int left_ = 16;
};

}  // namespace sluice
