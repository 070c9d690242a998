#include "runtime/exchange/trace_codec.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TraceLog example() {
    TraceLog log;
    log.lanes = {{"caller"}, {"transport"}, {"reads from trainer 0", true}};
    log.events = {
        {.name = TraceName::kRead,
         .lane = 2,
         .version = 1,
         .group = 0,
         .chunk = 7,
         .bytes = 1 << 20,
         .begin = 900,
         .end = 1000},
        {.name = TraceName::kReleaseWait, .lane = 0, .version = 3, .group = 4, .peer = 5, .begin = 100, .end = 200},
        {.name = TraceName::kLanded, .lane = 1, .version = 1, .group = 2, .begin = -5, .end = -5}};
    log.left_out = 12;
    log.wall_offset = -1'700'000'000'000'000'000;
    return log;
}

TEST(TraceCodecTest, ComesBackAsItWas) {
    const auto back = decode_trace(encode_trace(example()));
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(*back, example());
    const auto empty = decode_trace(encode_trace(TraceLog{}));
    ASSERT_TRUE(empty.ok());
    EXPECT_EQ(*empty, TraceLog{});
}

TEST(TraceCodecTest, WhatIsMalformedIsRefused) {
    const std::string good = encode_trace(example());
    for (std::size_t length = 1; length < good.size(); ++length) {
        // Cut anywhere it is refused, or it ends between two fields and columns or lanes are missing; the last fields may be.
        if (const auto cut = decode_trace(std::string_view(good).substr(0, length)); cut.ok()) {
            EXPECT_TRUE(cut->events.empty() || length + 12 >= good.size()) << length;
        }
    }
    TraceLog log = example();
    log.events[0].lane = 3;
    EXPECT_FALSE(decode_trace(encode_trace(log)).ok());
    log = example();
    log.events[0].name = static_cast<TraceName>(static_cast<int>(kLastTraceName) + 1);
    EXPECT_FALSE(decode_trace(encode_trace(log)).ok());
    log = example();
    log.events[0].end = log.events[0].begin - 1;
    EXPECT_FALSE(decode_trace(encode_trace(log)).ok());
}

}  // namespace
}  // namespace sluice
