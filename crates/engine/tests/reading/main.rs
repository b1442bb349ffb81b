//! Catalog, reader and verification on files made straight from the format.

#![allow(clippy::disallowed_methods)] // Tests make and damage files themselves.

mod catalog;
mod damage;
mod fixture;
mod reader;
