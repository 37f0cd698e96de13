// Every token is on exactly one rank, and every visible pair of tokens is covered once, for any
// lengths.
#include "ops/token_set.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace bev {
namespace {

using Token = std::pair<std::int32_t, std::int32_t>;  // document, position in it

std::vector<SampleShape> random_samples(std::mt19937& random) {
  std::vector<SampleShape> samples(1 + random() % 3);
  for (SampleShape& sample : samples) {
    sample.documents.resize(1 + random() % 4);
    for (std::int32_t& length : sample.documents) {
      length = static_cast<std::int32_t>(1 + random() % 9);
    }
  }
  return samples;
}

// Token of each row.
std::vector<Token> tokens_of(const TokenSet& set) {
  std::vector<Token> rows(static_cast<std::size_t>(set.tokens()), Token{-1, -1});
  for (const DocumentPiece& piece : set.pieces()) {
    for (std::int32_t i = 0; i < piece.count; ++i) {
      rows[static_cast<std::size_t>(piece.row + i)] = {piece.document, piece.begin + i};
    }
  }
  return rows;
}

TEST(TokenSet, EveryTokenIsOnOneRank) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<SampleShape> samples = random_samples(random);
    auto ranks = static_cast<std::int64_t>(1 + random() % 5);
    std::vector<Token> all = tokens_of(TokenSet(samples, ranks, 0, ranks));
    EXPECT_TRUE(std::ranges::is_sorted(all));
    std::set<Token> seen;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      for (const Token& token : tokens_of(TokenSet(samples, ranks, rank, rank + 1))) {
        EXPECT_TRUE(seen.insert(token).second);
      }
    }
    EXPECT_EQ(seen.size(), all.size());
  }
}

TEST(TokenSet, ChunksAreDealtOutFromBothEnds) {
  std::vector<SampleShape> samples = {{{8}}};
  auto rows = [&](std::int64_t rank) {
    std::vector<std::int32_t> places;
    for (const Token& token : tokens_of(TokenSet(samples, 2, rank, rank + 1))) {
      places.push_back(token.second);
    }
    return places;
  };
  EXPECT_EQ(rows(0), (std::vector<std::int32_t>{0, 1, 6, 7}));
  EXPECT_EQ(rows(1), (std::vector<std::int32_t>{2, 3, 4, 5}));
}

TEST(TokenSet, RowsAreFoundInALargerSet) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<SampleShape> samples = random_samples(random);
    auto inner = static_cast<std::int64_t>(1 + random() % 3);
    auto blocks = static_cast<std::int64_t>(1 + random() % 3);
    auto block = static_cast<std::int64_t>(random() % static_cast<unsigned>(blocks));
    TokenSet together(samples, inner * blocks, block * inner, (block + 1) * inner);
    std::vector<Token> whole = tokens_of(together);
    std::int64_t copied = 0;
    for (std::int64_t rank = block * inner; rank < (block + 1) * inner; ++rank) {
      TokenSet part(samples, inner * blocks, rank, rank + 1);
      std::vector<Token> rows = tokens_of(part);
      for (const RowCopy& copy : row_copies(part, together)) {
        for (std::int64_t i = 0; i < copy.count; ++i) {
          EXPECT_EQ(rows[static_cast<std::size_t>(copy.from + i)],
                    whole[static_cast<std::size_t>(copy.to + i)]);
        }
        copied += copy.count;
      }
    }
    EXPECT_EQ(copied, together.tokens());
  }
}

TEST(TokenSet, EveryVisiblePairMeetsOnce) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    std::vector<SampleShape> samples = random_samples(random);
    auto ranks = static_cast<std::int64_t>(1 + random() % 4);
    AttentionRule rule;
    rule.causal = random() % 2 == 0;
    rule.window = static_cast<std::int64_t>(random() % 6) - 1;
    auto visible = [&](std::int64_t q, std::int64_t k) {
      if (rule.causal && k > q) return false;
      return rule.window < 0 || std::abs(q - k) <= rule.window;
    };
    std::set<std::pair<Token, Token>> met;
    for (std::int64_t a = 0; a < ranks; ++a) {
      for (std::int64_t b = 0; b < ranks; ++b) {
        TokenSet queries(samples, ranks, a, a + 1), keys(samples, ranks, b, b + 1);
        std::vector<Token> q_rows = tokens_of(queries), k_rows = tokens_of(keys);
        for (int i = 0; i < queries.segments(); ++i) {
          for (int j = 0; j < keys.segments(); ++j) {
            std::set<std::int64_t> used;
            for (const AttentionRun& run : visible_runs(queries, i, keys, j, rule)) {
              for (std::int32_t k = 0; k < run.k_count; ++k) {
                EXPECT_TRUE(used.insert(run.k_begin + k).second) << "a key in two runs";
                const Token& key = k_rows[static_cast<std::size_t>(run.k_begin + k)];
                EXPECT_EQ(key.second, run.key_position + k);
                for (std::int32_t q = 0; q < run.q_count; ++q) {
                  const Token& query = q_rows[static_cast<std::size_t>(run.q_begin + q)];
                  EXPECT_EQ(query.first, key.first);
                  EXPECT_EQ(query.second - key.second, run.offset + q - k);
                  if (!visible(run.offset + q, k)) continue;
                  EXPECT_TRUE(met.insert({query, key}).second) << "a pair meets twice";
                }
              }
            }
          }
        }
      }
    }
    std::size_t expected = 0;
    for (const SampleShape& sample : samples) {
      for (std::int32_t length : sample.documents) {
        for (std::int32_t q = 0; q < length; ++q) {
          for (std::int32_t k = 0; k < length; ++k) expected += visible(q, k) ? 1 : 0;
        }
      }
    }
    EXPECT_EQ(met.size(), expected);
  }
}

}  // namespace
}  // namespace bev
