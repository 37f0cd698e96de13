// An error that a client gets in OpenAI's shape.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "serve/http.h"

namespace bev {

class ApiError : public std::exception {
 public:
  // param: the field of the body concerned; "": null. The type follows from the status.
  ApiError(int status, std::string message, std::string param = {}, std::string code = {})
      : status_(status),
        message_(std::move(message)),
        param_(std::move(param)),
        code_(std::move(code)) {}

  const char* what() const noexcept override { return message_.c_str(); }
  int status() const { return status_; }
  // {"message", "type", "param", "code"}
  std::string object() const;
  // {"error": object()}
  std::string body() const;
  HttpResponse response() const { return {.status = status_, .body = body()}; }

 private:
  int status_;
  std::string message_, param_, code_;
};

}  // namespace bev
