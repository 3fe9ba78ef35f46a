//! What all drivers of sqlx have in common.

/// A prepared statement with its parameters. SQLite's integers are signed, so all numbers are sent as signed. `rows`
/// rejects larger values beforehand.
macro_rules! prepared {
    ($statement:expr, $args:expr) => {
        $args.iter().fold(sqlx::query($statement), |query, arg| match arg {
            $crate::database::dialect::arg::Arg::Bytes(bytes) => query.bind(*bytes),
            $crate::database::dialect::arg::Arg::Int(number) => query.bind(number.cast_signed()),
        })
    };
}

/// The [`Link`](super::Link) of a type that has a connection of sqlx in its field 0. `$error` explains an error of the driver. The
/// statements, the ledger and the migrations are those of the folder that names it.
macro_rules! through_sqlx {
    ($link:ty, $error:path) => {
        impl Link for $link {
            fn statements(&self) -> &'static Statements {
                &STATEMENTS
            }

            fn check_velocity<'a>(
                &'a mut self,
                charge: &'a weir_core::replication::exact::plan::LedgerCharge,
                region: &'a [u8],
            ) -> Call<'a, Velocity> {
                Box::pin(ledger::check_velocity(self, charge, region))
            }

            fn migrate(&mut self) -> Call<'_, MigrationReport> {
                Box::pin(migrate::migrate(&mut self.0))
            }

            fn execute<'a>(&'a mut self, statement: &'static str, args: &'a [Arg<'a>]) -> Call<'a, u64> {
                Box::pin(async move {
                    let done = prepared!(statement, args).execute(&mut self.0).await;
                    Ok(done.map_err($error)?.rows_affected())
                })
            }

            fn execute_text(&mut self, text: String) -> Call<'_, u64> {
                Box::pin(async move {
                    let done = sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&mut self.0).await;
                    Ok(done.map_err($error)?.rows_affected())
                })
            }

            fn each<'a>(
                &'a mut self,
                statement: &'static str,
                args: &'a [Arg<'a>],
                take: Take<'a>,
            ) -> Call<'a, ()> {
                Box::pin(async move {
                    let mut rows = prepared!(statement, args).fetch(&mut self.0);
                    while let Some(row) = tokio_stream::StreamExt::next(&mut rows).await {
                        take(&row.map_err($error)?);
                    }
                    Ok(())
                })
            }

            fn each_text<'a>(&'a mut self, text: String, take: Take<'a>) -> Call<'a, ()> {
                Box::pin(async move {
                    let mut rows = sqlx::raw_sql(sqlx::AssertSqlSafe(text)).fetch(&mut self.0);
                    while let Some(row) = tokio_stream::StreamExt::next(&mut rows).await {
                        take(&row.map_err($error)?);
                    }
                    Ok(())
                })
            }

            fn ping(&mut self) -> Call<'_, ()> {
                Box::pin(async move { sqlx::Connection::ping(&mut self.0).await.map_err($error) })
            }
        }
    };
}

pub(super) use {prepared, through_sqlx};
