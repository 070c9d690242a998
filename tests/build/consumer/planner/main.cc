// Plans with nothing but the installed planner.
#include "planner/layout.h"

#include <cstdio>

int main() {
    const auto layout = sluice::TrainerLayout::parse("tp=4,pp=2,dp=2,ep=8");
    if (!layout.ok()) {
        std::fprintf(stderr, "%s\n", layout.status().message().c_str());
        return 1;
    }
    std::printf("%s on %d ranks\n", layout.value().to_string().c_str(), layout.value().world_size());
    return layout.value().world_size() == 16 ? 0 : 1;
}
