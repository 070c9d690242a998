#include "runtime/exchange/message.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace sluice {
namespace {

constexpr std::uint64_t kSession = 0x0123'4567'89AB'CDEF;

std::vector<std::byte> some_payload(std::size_t size) {
    std::vector<std::byte> out(size);
    for (std::size_t i = 0; i < size; ++i) {
        out[i] = static_cast<std::byte>(i * 31 + 7);
    }
    return out;
}

Message full_message(std::span<const std::byte> payload) {
    Message message;
    message.kind = MessageKind::kPacked;
    message.flow = FlowId::kGather;
    message.sender = 12'345;
    message.version = 0xFEDC'BA98'7654'3210;
    message.group = 61;
    message.chunk = 1 << 30;
    message.slot = 7;
    message.hash = 0x1122'3344'5566'7788;
    message.payload = payload;
    return message;
}

void expect_equal(const Message& a, const Message& b) {
    EXPECT_EQ(a.kind, b.kind);
    EXPECT_EQ(a.flow, b.flow);
    EXPECT_EQ(a.sender, b.sender);
    EXPECT_EQ(a.version, b.version);
    EXPECT_EQ(a.group, b.group);
    EXPECT_EQ(a.chunk, b.chunk);
    EXPECT_EQ(a.slot, b.slot);
    EXPECT_EQ(a.hash, b.hash);
    EXPECT_TRUE(std::ranges::equal(a.payload, b.payload));
}

TEST(MessageTest, EveryKindAndFlowComesBack) {
    for (int kind = 1; kind <= kLastMessageKind; ++kind) {
        for (int flow = 0; flow < kFlowCount; ++flow) {
            for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{2048}}) {
                const auto payload = some_payload(size);
                Message message = full_message(payload);
                message.kind = static_cast<MessageKind>(kind);
                message.flow = static_cast<FlowId>(flow);
                MessageHeader header;
                encode_message(message, kSession, header);
                const auto decoded = decode_message(header, payload, kSession);
                ASSERT_TRUE(decoded.ok()) << decoded.status().message();
                expect_equal(*decoded, message);
            }
        }
    }
}

TEST(MessageTest, NegativeNumbersOfPlanAndStatusComeBack) {
    Message message;
    message.group = message.chunk = message.slot = -1;
    MessageHeader header;
    encode_message(message, kSession, header);
    const auto decoded = decode_message(header, {}, kSession);
    ASSERT_TRUE(decoded.ok());
    expect_equal(*decoded, message);
}

TEST(MessageTest, TruncatedAtEveryByteIsRefused) {
    const auto payload = some_payload(100);
    MessageHeader header;
    encode_message(full_message(payload), kSession, header);
    for (std::size_t size = 0; size < header.size(); ++size) {
        EXPECT_FALSE(decode_message(std::span(header).first(size), payload, kSession).ok()) << size;
    }
    for (std::size_t size = 0; size < payload.size(); ++size) {
        EXPECT_FALSE(decode_message(header, std::span(payload).first(size), kSession).ok()) << size;
    }
    std::vector<std::byte> longer(header.begin(), header.end());
    longer.push_back(std::byte{0});
    EXPECT_FALSE(decode_message(longer, payload, kSession).ok());
}

TEST(MessageTest, EveryFlippedBitIsRefused) {
    const auto payload = some_payload(40);
    MessageHeader header;
    encode_message(full_message(payload), kSession, header);
    std::vector<std::byte> both(header.begin(), header.end());
    both.insert(both.end(), payload.begin(), payload.end());
    for (std::size_t bit = 0; bit < both.size() * 8; ++bit) {
        both[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
        const auto decoded =
            decode_message(std::span(both).first(header.size()), std::span(both).subspan(header.size()), kSession);
        EXPECT_FALSE(decoded.ok()) << "bit " << bit;
        both[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    }
}

TEST(MessageTest, AnotherSessionIsRefused) {
    MessageHeader header;
    encode_message(full_message({}), kSession, header);
    const auto decoded = decode_message(header, {}, kSession + 1);
    ASSERT_FALSE(decoded.ok());
    EXPECT_NE(decoded.status().message().find("0123456789abcdef"), std::string::npos) << decoded.status().message();
}

TEST(MessageTest, ImpossibleKindFlowAndSenderAreRefusedDespiteTheirChecksum) {
    const auto refused = [](const Message& message) {
        MessageHeader header;
        encode_message(message, kSession, header);
        return !decode_message(header, {}, kSession).ok();
    };
    Message message;
    message.kind = static_cast<MessageKind>(0);
    EXPECT_TRUE(refused(message));
    message.kind = static_cast<MessageKind>(kLastMessageKind + 1);
    EXPECT_TRUE(refused(message));
    message = {};
    message.flow = static_cast<FlowId>(kFlowCount);
    EXPECT_TRUE(refused(message));
    message = {};
    message.sender = -1;
    EXPECT_TRUE(refused(message));
}

TEST(MessageTest, RandomBytesAndRandomDamageAreNeverAccepted) {
    std::mt19937_64 random(20'260'101);
    const auto payload = some_payload(64);
    MessageHeader good;
    encode_message(full_message(payload), kSession, good);
    for (int i = 0; i < 100'000; ++i) {
        std::vector<std::byte> header(good.begin(), good.end());
        std::vector<std::byte> body = payload;
        if (i % 2 == 0) {
            header.resize(i % 4 == 0 ? kMessageHeaderBytes : random() % 128);
            body.resize(random() % 64);
            for (std::size_t at = 0; at + 8 <= header.size(); at += 8) {
                const std::uint64_t bytes = random();
                std::memcpy(header.data() + at, &bytes, sizeof bytes);
            }
        } else {
            for (std::uint64_t flips = 1 + random() % 4; flips > 0; --flips) {
                const std::size_t at = random() % (header.size() + body.size());
                (at < header.size() ? header[at] : body[at - header.size()]) ^=
                    static_cast<std::byte>(1 + random() % 255);
            }
        }
        if (decode_message(header, body, kSession).ok()) {
            ASSERT_TRUE(std::ranges::equal(header, good) && body == payload) << "accepted damage in round " << i;
        }
    }
}

}  // namespace
}  // namespace sluice
